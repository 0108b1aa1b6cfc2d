"""assign_buckets: a bucket is closed after it has run over"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    for i in reversed(range(len(nbytes))):
        if free < 0 or not buckets:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
