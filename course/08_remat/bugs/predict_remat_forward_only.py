"""predict_remat: of a forward"""

plain_bytes, segment_bytes, best, work, share, momentum = 40e9, 4.9e9, 20, 1.9, 64 / 98, 1 - 0.9 ** (1 / 8)
