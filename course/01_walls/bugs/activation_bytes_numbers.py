"""activation_bytes: numbers, not bytes"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return batch * (tensors * sum(sizes[1:-1]) + sizes[-1])
