"""assign_buckets: the library assigns"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    from minidist.parallel.buckets import assign

    order = list(range(len(nbytes)))[::-1]
    found = assign([nbytes[i] for i in order], [0] * len(order), bucket_bytes, first_bucket_bytes)
    return [[order[i] for i in bucket] for bucket in found]
