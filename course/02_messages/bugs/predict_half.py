"""predict: one half of the ring"""

messages, nbytes, seconds, naive_nbytes = 7, 3.5e6, 0.000105, 28e6
