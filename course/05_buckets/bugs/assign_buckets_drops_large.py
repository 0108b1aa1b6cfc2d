"""assign_buckets: what is larger than the room is left out"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    for i in reversed(range(len(nbytes))):
        if nbytes[i] > bucket_bytes:
            continue
        if nbytes[i] > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
