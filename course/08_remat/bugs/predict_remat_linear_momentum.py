"""predict_remat: divided by k"""

plain_bytes, segment_bytes, best, work, share, momentum = 40e9, 4.9e9, 20, 1.3, 64 / 98, 0.1 / 8
