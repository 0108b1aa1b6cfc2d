"""step_seconds: the last bucket after backward, as if all others were done"""

def step_seconds(nbytes, ready, n, alpha, beta):
    return ready[-1] + 2 * (n - 1) * (alpha + nbytes[-1] / n * beta)
