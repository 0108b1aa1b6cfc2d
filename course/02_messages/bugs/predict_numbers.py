"""predict: numbers, where bytes are asked for"""

messages, nbytes, seconds, naive_nbytes = 14, 1.75e6, 0.00021, 28e6
