"""predict_zero: the grader is asked, and answers in words"""

from minidist.check.zero.numbers import zero_slips

values, _ = zero_slips(13 * 10**9, 16, 100 * 10**9, 32 * 10**9)
stage_1, stage_2, stage_3, sent_2, sent_3, gpus, offloaded, over_link = (f"{x}" for x in values.values())
