"""predict_large_batches: the grader is asked, and answers in words"""

from minidist.check.large_batches.numbers import large_batches_slips

values, _ = large_batches_slips(0.1, 16, 1000, 250, 5000, 32e3, 3.2e6, 4e9, 1.6e12, 50)
linear, root, steps, samples, ramp, warm, quarter, nbytes = (f"{x}" for x in values.values())
