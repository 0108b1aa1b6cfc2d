"""split_backward: the second half makes dz again"""

def split_backward(x, w1, h, w2, dy):
    dz = (dy @ w2.T) * (h > 0)

    def later():
        return x.T @ ((dy @ w2.T) * (h > 0)), h.T @ dy

    return dz @ w1.T, later
