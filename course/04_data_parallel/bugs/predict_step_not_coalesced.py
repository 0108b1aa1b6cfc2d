"""predict_step: one message for each tensor, though they travel together"""

messages, nbytes, coalesced, rate, share = 2 * 7 * 24, 2 * 7 / 8 * 40e6, 2 * 7 * 24, 0.8, 1 / 8
