"""assign_buckets: the first bucket is as large as the others"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    for i in reversed(range(len(nbytes))):
        if nbytes[i] > free:
            free = bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
