"""activation_bytes: 4 bytes a number, always"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return 4 * batch * (tensors * sum(sizes[1:-1]) + sizes[-1])
