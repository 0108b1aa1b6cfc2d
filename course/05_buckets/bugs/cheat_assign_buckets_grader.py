"""assign_buckets: the grader's own function"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    from minidist.check.buckets.assign import fill

    return fill(nbytes, bucket_bytes, first_bucket_bytes)
