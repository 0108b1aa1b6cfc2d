"""predict_step: numbers, not bytes"""

messages, nbytes, coalesced, rate, share = 2 * 7 * 24, 2 * 7 / 8 * 10e6, 14, 0.8, 1 / 8
