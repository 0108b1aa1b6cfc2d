"""two_versions: gradients at the newest version"""

def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    older = newer = weight
    for g in range(0, len(xs), m):
        mean = sum(grad(newer, x) for x in xs[g : g + m]) / m
        older, newer = newer, newer - rate * mean
    return newer
