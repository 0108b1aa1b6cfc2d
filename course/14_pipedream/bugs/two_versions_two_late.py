"""two_versions: two updates late"""

def two_versions(weight, grad, xs, rate, m):
    made = [weight]
    for g in range(len(xs) // m):
        mean = sum(grad(made[max(0, g - 2)], x) for x in xs[g * m : g * m + m]) / m
        made.append(made[-1] - rate * mean)
    return made[-1]
