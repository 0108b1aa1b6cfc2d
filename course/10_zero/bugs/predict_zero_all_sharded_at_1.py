"""predict_zero: stage 1 like stage 3"""

stage_1, stage_2, stage_3, sent_2, sent_3, gpus = 16 * 13e9 / 16, 37.375e9, 13e9, 48.75e9, 73.125e9, 50
