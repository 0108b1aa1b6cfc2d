"""predict_precision: one doubling"""

kept, lost, stuck, states, faster, recovered = 1 + 100 / 1024, 1.0, 4096, 24, 989 / 67, 2000
