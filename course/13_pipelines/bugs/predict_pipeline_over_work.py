"""predict_pipeline: the bubble over the time without it"""

bubble, gpipe_keeps, keeps, interleaved, enough, idle = 7 / 32, 32, 6, 7 / 135, 63, 7
