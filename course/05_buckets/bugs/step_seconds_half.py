"""step_seconds: half a ring"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = 0.0
    for size, at in zip(nbytes, ready):
        wire = max(wire, at) + (n - 1) * (alpha + size / n * beta)
    return wire
