"""predict_pipeline: the warm-up only"""

bubble, gpipe_keeps, keeps, interleaved, enough, idle = 7 / 39, 32, 5, 7 / 135, 63, 7
