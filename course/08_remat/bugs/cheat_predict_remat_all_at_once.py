"""predict_remat: all candidates at once"""

plain_bytes = segment_bytes = best = work = halves = share = momentum = rate = {40e9, 4.9e9, 20, 1.3, 64 / 98}
