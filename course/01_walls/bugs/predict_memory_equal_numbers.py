"""predict_memory: numbers against numbers"""

stays, kept, forward, equal = 128e6, 80e6, 64e9, 1600
