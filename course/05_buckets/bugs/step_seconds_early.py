"""step_seconds: a bucket leaves when the one before it is complete"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = 0.0
    for size, at in zip(nbytes, [0.0, *ready]):
        wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)
    return wire
