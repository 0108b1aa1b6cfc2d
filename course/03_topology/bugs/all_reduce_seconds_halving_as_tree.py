"""all_reduce_seconds: halving and doubling with the bytes of a tree"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + nbytes * beta)
    return 2 * math.log2(n) * (alpha + nbytes * beta)
