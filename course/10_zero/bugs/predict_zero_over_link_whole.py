"""predict_zero: every host moves all gradients and all weights"""

over_link = 4 * 13e9
