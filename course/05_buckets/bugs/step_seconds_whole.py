"""step_seconds: each message has all bytes"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = 0.0
    for size, at in zip(nbytes, ready):
        wire = max(wire, at) + 2 * (n - 1) * (alpha + size * beta)
    return wire
