"""predict_remat: the last segment is repeated, too"""

plain_bytes, segment_bytes, best, work, share, momentum = 40e9, 4.9e9, 20, 4 / 3, 64 / 98, 1 - 0.9 ** (1 / 8)
