"""assign_buckets: the rest of a bucket is added to the next one's room"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    for i in reversed(range(len(nbytes))):
        if nbytes[i] > free:
            free = max(free, 0) + bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
