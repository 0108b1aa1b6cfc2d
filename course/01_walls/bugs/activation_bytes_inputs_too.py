"""activation_bytes: the inputs x are counted"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return batch * itemsize * (tensors * sum(sizes[1:-1]) + sizes[-1] + sizes[0])
