"""bandwidth: the factor of an all-reduce for every verb"""

def bandwidth(verb, n, nbytes, seconds):
    return nbytes / seconds, 2 * (n - 1) / n * nbytes / seconds
