"""predict_remat: by halves, the layer itself is forgotten"""

plain_bytes, segment_bytes, best, work, halves = 40e9, 4.9e9, 20, 1.3, 6 * 100e6
share, momentum, rate = 64 / 98, 1 - 0.9 ** (1 / 8), 0.1 * 8**0.5
