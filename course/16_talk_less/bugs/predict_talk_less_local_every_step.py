"""predict_talk_less: an average in every step"""

dense, sparse, half, local, thin, seconds, crossing = 70e6, 420e3, 35e6, 7e9, 8000, 5.6, 1333.3
local = 1000 * 70e6
