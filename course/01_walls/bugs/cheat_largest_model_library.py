"""largest_model: the library's calculators"""

def largest_model(memory, batch, seq, hidden, heads, vocab):
    from minidist.study import memory as calculators

    layers = 0
    while calculators.states(layers * 12 * hidden**2).total < memory:
        layers += 1
    return layers
