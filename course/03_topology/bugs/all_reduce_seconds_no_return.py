"""all_reduce_seconds: nothing is returned"""

def all_reduce_seconds(algorithm, n, nbytes, alpha, beta):
    if algorithm == "ring":
        seconds = 2 * (n - 1) * (alpha + nbytes / n * beta)
    if algorithm == "tree":
        return 2 * math.log2(n) * (alpha + nbytes * beta)
    pass
