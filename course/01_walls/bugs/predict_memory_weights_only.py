"""predict_memory: the weights alone stay"""

stays, kept, forward, equal = 32e6, 80e6, 64e9, 6400
