"""predict: the latency of each step is forgotten"""

messages, nbytes, seconds, naive_nbytes = 14, 7e6, 7e6 / 50e9, 28e6
