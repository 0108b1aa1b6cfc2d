"""predict_zero: numbers, not bytes"""

stage_1, stage_2, stage_3, sent_2, sent_3, gpus = 61.75e9, 37.375e9, 13e9, 2 * 13e9 * 15 / 16, 73.125e9, 50
