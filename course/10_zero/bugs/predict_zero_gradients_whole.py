"""predict_zero: gradients whole at stage 2"""

stage_1, stage_2, stage_3, sent_2, sent_3, gpus = 61.75e9, 4 * 13e9 + 12 * 13e9 / 16, 13e9, 48.75e9, 73.125e9, 50
