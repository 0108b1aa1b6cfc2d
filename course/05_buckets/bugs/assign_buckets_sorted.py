"""assign_buckets: sorted by size, so that buckets are full"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    for i in sorted(range(len(nbytes)), key=lambda i: nbytes[i]):
        if nbytes[i] > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return buckets
