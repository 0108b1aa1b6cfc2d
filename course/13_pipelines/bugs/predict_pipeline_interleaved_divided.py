"""predict_pipeline: the bubble divided by v, with the wrong whole"""

bubble, gpipe_keeps, keeps, interleaved, enough, idle = 7 / 39, 32, 6, 7 / 39 / 4, 63, 7
