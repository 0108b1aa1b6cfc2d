"""predict_step: the rate is divided by n"""

messages, nbytes, coalesced, rate, share = 2 * 7 * 24, 2 * 7 / 8 * 40e6, 14, 0.1 / 8, 1 / 8
