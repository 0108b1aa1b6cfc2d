"""predict_remat: √L"""

plain_bytes, segment_bytes, best, work, share, momentum = 40e9, 4.9e9, 10, 1.3, 64 / 98, 1 - 0.9 ** (1 / 8)
