"""two_versions: a rate of its own"""


def two_versions(weight, grad, xs, rate, m):
    older = newer = weight
    for g in range(0, len(xs), m):
        mean = sum(grad(older, x) for x in xs[g : g + m]) / m
        older, newer = newer, newer - 0.125 * mean
    return newer
