"""predict_memory: upside down"""

stays, kept, forward, equal = 128e6, 80e6, 64e9, 1 / 6400
