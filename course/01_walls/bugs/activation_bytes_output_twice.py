"""activation_bytes: an activation function behind the last layer"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    return batch * itemsize * tensors * sum(sizes[1:])
