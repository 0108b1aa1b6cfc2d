"""predict_server: without the + 1"""

n, N, C, alpha, beta = 32, 1e9, 40e-3, 10e-6, 1 / 50e9
one = C + 2 * alpha + (n + 1) * N * beta
ring = C + 2 * (n - 1) * (alpha + N / n * beta)
servers = n / (100e-3 / (N * beta))
into = n * N / servers
gradients = (n - 1) * 3 + 1
stalest = (n - 1) * (2 * 2 + 1)
rate = 2 * math.sin(math.pi / (4 * (n - 1) + 2)) / 4
