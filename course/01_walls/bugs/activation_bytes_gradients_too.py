"""activation_bytes: and as many bytes of gradients"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return 2 * batch * itemsize * (tensors * sum(sizes[1:-1]) + sizes[-1])
