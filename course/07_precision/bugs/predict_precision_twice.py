"""predict_precision: half the bytes, twice as fast"""

kept, lost, stuck, states, faster, recovered = 1 + 100 / 1024, 1.0, 4096, 24, 2, 4000
