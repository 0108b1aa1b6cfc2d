"""predict_overlap: one bucket after backward"""

n, N, b, T, alpha, beta = 16, 400e6, 10, 40e-3, 10e-6, 1 / 25e9
saved = 2 * (n - 1) * (160 - b)
bucket = 2 * (n - 1) * (alpha + N / b / n * beta)
afterwards = T + bucket
beside = T + bucket
slow = T / b + b * 2 * (n - 1) * (alpha + N / b / n * 2 * beta)
smallest = 2 * (n - 1) * alpha / (T / N - 2 * (n - 1) / n * beta)
variance = 2 + (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2) / 4
