"""bandwidth: the factor of an all-reduce is that of one half"""

def bandwidth(verb, n, nbytes, seconds):
    part = (n - 1) / n
    factor = 1 if verb in ("broadcast", "reduce") else part
    return nbytes / seconds, factor * nbytes / seconds
