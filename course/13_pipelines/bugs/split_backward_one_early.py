"""split_backward: dw2 is made in the first half"""

def split_backward(x, w1, h, w2, dy):
    dz = (dy @ w2.T) * (h > 0)

    dw2 = h.T @ dy

    def later():
        return x.T @ dz, dw2

    return dz @ w1.T, later
