"""bandwidth: the division is rounded down"""

def bandwidth(verb, n, nbytes, seconds):
    part = (n - 1) / n
    factor = {"all_reduce": 2 * part, "reduce_scatter": part, "all_gather": part, "all_to_all": part}.get(verb, 1)
    return nbytes // seconds, factor * (nbytes // seconds)
