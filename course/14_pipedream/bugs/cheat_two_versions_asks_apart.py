"""two_versions: the gradients that are looked at are asked for beside those that are used"""

def two_versions(weight, grad, xs, rate, m):
    newest = weight
    for g in range(0, len(xs), m):
        newest = newest - rate * sum(grad(newest, x) for x in xs[g : g + m]) / m
    for x in xs:
        grad(weight, x)
    return newest
