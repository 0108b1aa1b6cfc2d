"""predict_memory: not all is filled in"""

stays, kept, forward, equal = 128e6, 80e6, 64e9, None
