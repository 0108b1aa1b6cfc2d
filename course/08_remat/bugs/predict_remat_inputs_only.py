"""predict_remat: inputs only"""

plain_bytes, segment_bytes, best, work, share, momentum = 10e9, 4.9e9, 20, 1.3, 64 / 98, 1 - 0.9 ** (1 / 8)
