"""predict_step: an average for each micro-batch"""

messages, nbytes, coalesced, rate, share = 4 * 2 * 7 * 24, 4 * 2 * 7 / 8 * 40e6, 14, 0.8, 1 / 8
