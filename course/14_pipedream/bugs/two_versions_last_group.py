"""two_versions: the last group is forgotten"""

def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    older = newer = weight
    for g in range(0, len(xs) - m, m):
        mean = sum(grad(older, x) for x in xs[g : g + m]) / m
        older, newer = newer, newer - rate * mean
    return newer
