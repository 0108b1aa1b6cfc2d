"""activation_bytes: the largest layer only"""

def activation_bytes(batch, sizes, itemsize, activation):
    return batch * itemsize * max(sizes[1:])
