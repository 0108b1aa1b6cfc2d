"""predict_pipeline: 1F1B's idle time"""

bubble, gpipe_keeps, keeps, interleaved, enough, idle = 7 / 39, 32, 6, 7 / 135, 63, 21
