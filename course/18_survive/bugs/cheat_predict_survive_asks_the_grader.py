"""predict_survive: the grader is asked, and answers in words"""

from minidist.check.survive.numbers import survive_slips

values, _ = survive_slips(20e9, 400e9, 32, 8, 32, 2e9, 20_000, 989e12, 0.4)
whole_bytes, rank_bytes, save_seconds, mtbf_seconds, every_seconds, bubble, gpu_hours, failures = (
    f"{x}" for x in values.values()
)
