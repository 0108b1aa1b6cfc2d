"""predict_vocabulary: three all-reduces, where two are enough"""

n, V, H = 8, 64_000, 5_120
saved = V * H * 4 * (n - 1) / n / 2**20
gathered = (n - 1) / n * V * 4
reduced = doubled = 3 * 2 * (n - 1) / n * 4
messages = 3 * 2 * (n - 1)
looked_up = 2 * (n - 1) / n * H * 4
