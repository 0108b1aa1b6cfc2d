"""activation_bytes: one sample"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return itemsize * (tensors * sum(sizes[1:-1]) + sizes[-1])
