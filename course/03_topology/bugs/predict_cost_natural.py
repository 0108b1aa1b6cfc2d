"""predict_cost: the natural logarithm"""

n, alpha, beta = 512, 5e-6, 1 / 50e9
ring = 2 * (n - 1) * alpha
tree = 2 * math.log(n) * alpha
crossover = (n - 1 - math.log2(n)) * alpha / ((math.log2(n) - (n - 1) / n) * beta)
across = 2 * 63 / 64 * 1e9 / 8
late = 1 - 0.999**n
