"""predict: every message carries the whole tensor"""

messages, nbytes, seconds, naive_nbytes = 14, 56e6 / 8 * 8, 0.00119, 28e6
