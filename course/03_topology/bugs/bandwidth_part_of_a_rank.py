"""bandwidth: the bytes of one rank's part for all-gather and reduce-scatter"""

def bandwidth(verb, n, nbytes, seconds):
    part = (n - 1) / n
    factor = {"all_reduce": 2 * part, "reduce_scatter": n - 1, "all_gather": n - 1, "all_to_all": n - 1}.get(verb, 1)
    return nbytes / seconds, factor * nbytes / seconds
