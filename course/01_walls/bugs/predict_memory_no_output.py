"""predict_memory: the output is not kept"""

stays, kept, forward, equal = 128e6, 64e6, 64e9, 6400
