"""predict_memory: the batch above"""

stays, kept, forward, equal = 128e6, 80e6, 64e9, 4000
