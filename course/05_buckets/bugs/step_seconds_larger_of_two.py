"""step_seconds: the larger of backward and the wire"""

def step_seconds(nbytes, ready, n, alpha, beta):
    return max(ready[-1], sum(2 * (n - 1) * (alpha + size / n * beta) for size in nbytes))
