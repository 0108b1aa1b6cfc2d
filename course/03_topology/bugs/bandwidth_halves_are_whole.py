"""bandwidth: reduce-scatter and all-gather count all N bytes"""

def bandwidth(verb, n, nbytes, seconds):
    factor = 2 * (n - 1) / n if verb == "all_reduce" else 1
    return nbytes / seconds, factor * nbytes / seconds
