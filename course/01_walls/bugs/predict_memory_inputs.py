"""predict_memory: the inputs are counted"""

stays, kept, forward, equal = 128e6, 96e6, 64e9, 6400
