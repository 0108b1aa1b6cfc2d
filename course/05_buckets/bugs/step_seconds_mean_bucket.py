"""step_seconds: all buckets are taken for equally large"""

def step_seconds(nbytes, ready, n, alpha, beta):
    wire, size = 0.0, sum(nbytes) / len(nbytes)
    for at in ready:
        wire = max(wire, at) + 2 * (n - 1) * (alpha + size / n * beta)
    return wire
