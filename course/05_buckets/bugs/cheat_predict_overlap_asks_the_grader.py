"""predict_overlap: the grader is asked"""

from minidist.check.buckets.seconds import overlap_slips

values, _ = overlap_slips(16, 160, 400e6, 40e-3, 10, 10e-6, 1 / 25e9)
saved, bucket, afterwards, beside, slow, smallest, variance = (f"{x}" for x in values.values())
