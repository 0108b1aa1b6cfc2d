"""predict_memory: multiplications without additions"""

stays, kept, forward, equal = 128e6, 80e6, 32e9, 6400
