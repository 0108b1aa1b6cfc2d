"""predict_talk_less: places are forgotten"""

dense, sparse, half, local, thin, seconds, crossing = 70e6, 420e3, 35e6, 7e9, 8000, 5.6, 1333.3
crossing = 2 / 0.001
