"""predict_precision: fp32's sum"""

kept, lost, stuck, states, faster, recovered = 1 + 100 / 1024, 1 + 100 / 4096, 4096, 24, 989 / 67, 4000
