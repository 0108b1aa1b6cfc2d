"""predict_memory: numbers instead of bytes"""

stays, kept, forward, equal = 8_005_000, 80e6, 64e9, 6400
