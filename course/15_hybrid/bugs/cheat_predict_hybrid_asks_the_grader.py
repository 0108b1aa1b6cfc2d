"""predict_hybrid: the grader is asked, and answers in words"""

from minidist.check.hybrid.numbers import hybrid_slips

values, _ = hybrid_slips(4, 2, 8, 32, 8192, 4096, 12, 400e9, 50e9)
replica, tp_bytes, dp_bytes, pp_bytes, good, bad, ratio = (f"{x}" for x in values.values())
