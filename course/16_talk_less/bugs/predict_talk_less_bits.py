"""predict_talk_less: bytes a second as bits"""

dense, sparse, half, local, thin, seconds, crossing = 70e6, 420e3, 35e6, 7e9, 8000, 5.6, 1333.3
seconds = 8 * 5.6
