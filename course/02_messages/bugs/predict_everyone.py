"""predict: what all ranks send together"""

messages, nbytes, seconds, naive_nbytes = 112, 56e6, 0.00021, 28e6
