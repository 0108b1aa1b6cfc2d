"""best_grid: powers of two only"""

def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    found = []
    for tp, pp in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
        dp = gpus // (tp * pp)
        if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:
            continue
        if nbytes(dp, pp, tp) <= capacity:
            found.append((seconds(dp, pp, tp), (dp, pp, tp)))
    return min(found)[1] if found else None
