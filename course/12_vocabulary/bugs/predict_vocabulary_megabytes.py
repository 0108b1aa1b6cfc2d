"""predict_vocabulary: MB for MiB"""

n, V, H = 8, 64_000, 5_120
saved = V * H * 4 * (n - 1) / n / 1e6
gathered = (n - 1) / n * V * 4
reduced = doubled = 3 * 2 * (n - 1) / n * 4
messages = 2 * 2 * (n - 1)
looked_up = 2 * (n - 1) / n * H * 4
