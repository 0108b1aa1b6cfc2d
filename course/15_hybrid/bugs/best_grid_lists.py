"""best_grid: a list for each number"""

def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    found = []
    for tp, pp in product(range(1, node + 1), range(1, layers + 1)):
        dp = gpus // (tp * pp)
        if dp * tp * pp != gpus or node % tp or heads % tp or layers % pp or batch % dp:
            continue
        if nbytes(dp, pp, tp) <= capacity:
            found.append((seconds(dp, pp, tp), ([dp], [pp], [tp])))
    return min(found)[1] if found else None
