"""predict_tensor: the grader is asked"""

from minidist.check.tensor.figures import tensor_slips

values, _ = tensor_slips(4, 1, 4096, 8192, 2, 5e-6, 1 / 300e9)
messages, nbytes, seconds, row_first, heads, sequence, weights = (f"{x}" for x in values.values())
