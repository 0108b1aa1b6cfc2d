"""predict_memory: the optimizer keeps nothing"""

stays, kept, forward, equal = 8 * 8_005_000, 80e6, 64e9, 6400
