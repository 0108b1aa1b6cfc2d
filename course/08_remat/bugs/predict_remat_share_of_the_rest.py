"""predict_remat: 5as/h over 34"""

plain_bytes, segment_bytes, best, work, share, momentum = 40e9, 4.9e9, 20, 1.3, 64 / 34, 1 - 0.9 ** (1 / 8)
