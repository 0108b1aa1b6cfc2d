"""all_reduce_seconds: one α for the whole ring"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return alpha + 2 * (n - 1) / n * nbytes * beta
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + nbytes * beta)
    return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
