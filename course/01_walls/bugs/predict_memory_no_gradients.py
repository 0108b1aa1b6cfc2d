"""predict_memory: the gradients do not stay"""

stays, kept, forward, equal = 12 * 8_005_000, 80e6, 64e9, 6400
