"""split_backward: the weights' gradients are made first, too"""

def split_backward(x, w1, h, w2, dy):
    dz = (dy @ w2.T) * (h > 0)
    dw1, dw2 = x.T @ dz, h.T @ dy
    return dz @ w1.T, lambda: (dw1, dw2)
