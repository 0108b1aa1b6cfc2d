"""step_seconds: only the first bucket is waited for"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire = ready[0]
    for size, at in zip(nbytes, ready):
        wire = wire + 2 * (n - 1) * (alpha + size / n * beta)
    return wire
