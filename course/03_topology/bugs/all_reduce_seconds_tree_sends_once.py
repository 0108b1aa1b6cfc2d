"""all_reduce_seconds: the tree sends N bytes once"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * math.log2(n) * alpha + 2 * nbytes * beta
    return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
