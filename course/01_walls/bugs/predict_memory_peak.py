"""predict_memory: the peak stays"""

stays, kept, forward, equal = 208e6, 80e6, 64e9, 6400
