"""predict_memory: one sample"""

stays, kept, forward, equal = 128e6, 20e3, 64e9, 6400
