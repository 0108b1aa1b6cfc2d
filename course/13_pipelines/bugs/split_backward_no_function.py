"""split_backward: the three gradients, no function"""

def split_backward(x, w1, h, w2, dy):
    dz = (dy @ w2.T) * (h > 0)
    return dz @ w1.T, (x.T @ dz, h.T @ dy)
