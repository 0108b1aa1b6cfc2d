"""predict_step: one half of the ring"""

messages, nbytes, coalesced, rate, share = 2 * 7 * 24, 2 * 7 / 8 * 40e6, 7, 0.8, 1 / 8
