"""split_backward: dw2 from what was before the relu"""

def split_backward(x, w1, h, w2, dy):
    dz = (dy @ w2.T) * (h > 0)

    def later():
        return x.T @ dz, (x @ w1).T @ dy

    return dz @ w1.T, later
