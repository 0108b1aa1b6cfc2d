"""step_seconds: the wire never waits for a bucket"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = 0.0
    for size, at in zip(nbytes, ready):
        wire = wire + 2 * (n - 1) * (alpha + size / n * beta)
    return wire
