"""predict_large_batches: a line"""

linear = root = steps = samples = ramp = warm = quarter = nbytes = None
linear = 0.1 * 16
root = 0.1 * 16**0.5
steps = 5000 * (1 + 1000 / 250)
samples = steps * 250
ramp = 4e9 / (3.2e6 - 32e3) * math.log(100)
warm = 0.005 * 1.6e12 / 3.2e6
quarter = 0.1 + 0.9 * 0.75
nbytes = 50 * 2 * 8
