"""predict_step: the share of the rank, not of a sample"""

messages, nbytes, coalesced, rate, share = 2 * 7 * 24, 2 * 7 / 8 * 40e6, 14, 0.8, 1 / 4
