"""predict_tensor: a layer of one block"""

n, H, N = 4, 8192, 4096 * 8192 * 2
messages = 4 * 2 * (n - 1)
nbytes = 2 * 2 * (n - 1) / n * N
seconds = messages * 5e-6 + nbytes / 300e9
row_first = 2 * (n - 1) / n * (4 * N + N)
heads = nbytes
sequence = nbytes
weights = 12 * H**2 * 2 / n
