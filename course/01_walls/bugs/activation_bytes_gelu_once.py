"""activation_bytes: gelu keeps one tensor"""

def activation_bytes(batch, sizes, itemsize, activation):
    return batch * itemsize * sum(sizes[1:])
