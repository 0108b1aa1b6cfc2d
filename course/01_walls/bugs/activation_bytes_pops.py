"""activation_bytes: `sizes` is taken apart"""

def activation_bytes(batch, sizes, itemsize, activation):
    tensors = {"relu": 1, "gelu": 2}[activation]
    out = sizes.pop()
    sizes.pop(0)
    return batch * itemsize * (tensors * sum(sizes) + out)
