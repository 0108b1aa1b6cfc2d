"""predict_zero: with offload, whole gradients on every GPU"""

offloaded = 4 * 13e9
