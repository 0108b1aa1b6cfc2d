"""split_backward: the weights' gradients are transposed"""

def split_backward(x, w1, h, w2, dy):
    dz = (dy @ w2.T) * (h > 0)

    def later():
        return dz.T @ x, dy.T @ h

    return dz @ w1.T, later
