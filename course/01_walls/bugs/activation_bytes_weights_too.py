"""activation_bytes: weights are counted"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    weights = sum(a * b + b for a, b in zip(sizes, sizes[1:]))
    return itemsize * (weights + batch * (tensors * sum(sizes[1:-1]) + sizes[-1]))
