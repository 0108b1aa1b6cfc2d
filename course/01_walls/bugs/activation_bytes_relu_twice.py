"""activation_bytes: relu keeps its input and its output"""

def activation_bytes(batch, sizes, itemsize, activation):
    return batch * itemsize * (2 * sum(sizes[1:-1]) + sizes[-1])
