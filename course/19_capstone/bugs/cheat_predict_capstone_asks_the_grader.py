"""predict_capstone: the grader is asked, and answers in words"""

from minidist.check.capstone.numbers import capstone_slips

values, _ = capstone_slips(8, 4, 24_000_000, 5, 3, 20e-6, 1e-10)
ddp_messages, ddp_bytes, gathers, fsdp_messages, fsdp_bytes, seconds, micro_bytes = (f"{x}" for x in values.values())
