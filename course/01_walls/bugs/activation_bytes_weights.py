"""activation_bytes: the weights instead of the activations"""

def activation_bytes(batch, sizes, itemsize, activation):
    return itemsize * sum(a * b + b for a, b in zip(sizes, sizes[1:]))
