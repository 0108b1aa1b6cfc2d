"""step_seconds: each bucket beside its own computation"""

def step_seconds(nbytes, ready, n, alpha, beta):
    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    return sum(max(gap, 2 * (n - 1) * (alpha + size / n * beta)) for size, gap in zip(nbytes, gaps))
