"""predict_memory: relu's input is kept, too"""

stays, kept, forward, equal = 128e6, 160e6, 64e9, 6400
