"""predict_step: what all ranks send together"""

messages, nbytes, coalesced, rate, share = 8 * 2 * 7 * 24, 8 * 2 * 7 / 8 * 40e6, 8 * 14, 0.8, 1 / 8
