"""predict_talk_less: the grader is asked, and answers in words"""

from minidist.check.talk_less.numbers import talk_less_slips

values, _ = talk_less_slips(8, 10e6, 0.001, 10, 1000, 1000, 4, 12.5e6)
dense, sparse, half, local, thin, seconds, crossing = (f"{x}" for x in values.values())
