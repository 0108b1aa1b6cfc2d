"""all_reduce_seconds: the library's cost formula is asked"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    from minidist.collectives import cost

    return cost.seconds("all_reduce", algorithm, n, nbytes, alpha, beta)
