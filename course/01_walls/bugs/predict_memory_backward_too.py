"""predict_memory: forward and backward"""

stays, kept, forward, equal = 128e6, 80e6, 192e9, 6400
