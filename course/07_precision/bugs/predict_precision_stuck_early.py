"""predict_precision: stuck where ones are"""

kept, lost, stuck, states, faster, recovered = 1 + 100 / 1024, 1.0, 2048, 24, 989 / 67, 4000
