"""activation_bytes: the last hidden layer is missing"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return batch * itemsize * (tensors * sum(sizes[1:-2]) + sizes[-1])
