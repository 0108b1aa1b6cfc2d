"""bandwidth: the factor of an all-reduce is 2"""

def bandwidth(verb, n, nbytes, seconds):
    part = (n - 1) / n
    factor = {"all_reduce": 2, "reduce_scatter": part, "all_gather": part, "all_to_all": part}.get(verb, 1)
    return nbytes / seconds, factor * nbytes / seconds
