"""step_seconds: the library predicts"""

def step_seconds(nbytes, ready, n, alpha, beta):
    from minidist.parallel.overlap import step_time

    gaps = [b - a for a, b in zip([0.0, *ready], ready)]
    return step_time(nbytes, gaps, n, alpha, beta, 1, 1)
