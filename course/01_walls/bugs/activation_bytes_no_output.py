"""activation_bytes: the network's output is not kept"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return batch * itemsize * tensors * sum(sizes[1:-1])
