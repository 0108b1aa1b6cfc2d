"""predict: what rank 0 receives is counted as sent"""

messages, nbytes, seconds, naive_nbytes = 14, 7e6, 0.00021, 56e6
