"""predict_pipeline: counted from the first stage"""

bubble, gpipe_keeps, keeps, interleaved, enough, idle = 7 / 39, 32, 3, 7 / 135, 63, 7
