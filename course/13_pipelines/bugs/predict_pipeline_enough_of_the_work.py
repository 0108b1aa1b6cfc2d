"""predict_pipeline: a tenth of the work, not of the time"""

bubble, gpipe_keeps, keeps, interleaved, enough, idle = 7 / 39, 32, 6, 7 / 135, 70, 7
