"""step_seconds: 2n steps"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = 0.0
    for size, at in zip(nbytes, ready):
        wire = max(wire, at) + 2 * n * (alpha + size / n * beta)
    return wire
