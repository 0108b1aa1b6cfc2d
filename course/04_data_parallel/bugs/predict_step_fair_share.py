"""predict_step: every sample counts the same"""

messages, nbytes, coalesced, rate, share = 2 * 7 * 24, 2 * 7 / 8 * 40e6, 14, 0.8, 1 / 10
