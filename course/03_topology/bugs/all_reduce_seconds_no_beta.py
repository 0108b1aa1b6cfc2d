"""all_reduce_seconds: the ring without its bytes"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return 2 * (n - 1) * alpha
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + nbytes * beta)
    return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
