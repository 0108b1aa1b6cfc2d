"""all_reduce_seconds: one half of the ring"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        return (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + nbytes * beta)
    return 2 * math.log2(n) * alpha + 2 * (n - 1) / n * nbytes * beta
