"""assign_buckets: the caller's list is emptied"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    while nbytes:
        size = nbytes.pop()
        if size > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(len(nbytes))
        free -= size
    return buckets
