"""all_reduce_seconds: a number that no float holds"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    return 10**400
