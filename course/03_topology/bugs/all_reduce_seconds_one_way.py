"""all_reduce_seconds: the tree goes to the root, and not back"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return math.log2(n) * (alpha + nbytes * beta)
    return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
