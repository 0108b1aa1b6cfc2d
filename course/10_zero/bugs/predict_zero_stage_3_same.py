"""predict_zero: stage 3 sends like stage 2"""

stage_1, stage_2, stage_3, sent_2, sent_3, gpus = 61.75e9, 37.375e9, 13e9, 48.75e9, 48.75e9, 50
