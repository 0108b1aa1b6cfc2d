"""predict_remat: ten inputs, not nine"""

plain_bytes, segment_bytes, best, work, share, momentum = 40e9, 5e9, 20, 1.3, 64 / 98, 1 - 0.9 ** (1 / 8)
