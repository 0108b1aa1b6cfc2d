"""step_seconds: everything after backward"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = ready[-1]
    for size, at in zip(nbytes, ready):
        wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)
    return wire
