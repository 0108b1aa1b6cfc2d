"""predict_memory: a second copy of the weights in fp32"""

stays, kept, forward, equal = 160e6, 80e6, 64e9, 6400
