"""step_seconds: one α an all-reduce"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = 0.0
    for size, at in zip(nbytes, ready):
        wire = max(wire, at) + (alpha + 2 * (n - 1) * size / n * beta)
    return wire
