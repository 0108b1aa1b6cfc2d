"""predict_cost: the crossover without the ring's bytes"""

n, alpha, beta = 512, 5e-6, 1 / 50e9
ring = 2 * (n - 1) * alpha
tree = 2 * math.log2(n) * alpha
crossover = (n - 1 - math.log2(n)) * alpha / (math.log2(n) * beta)
across = 2 * 63 / 64 * 1e9 / 8
late = 1 - 0.999**n
