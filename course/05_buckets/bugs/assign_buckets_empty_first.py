"""assign_buckets: begins with an empty bucket"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [[]], first_bucket_bytes
    for i in reversed(range(len(nbytes))):
        if nbytes[i] > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
