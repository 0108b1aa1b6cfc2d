"""assign_buckets: a small gradient goes back to an earlier bucket that has room"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], []
    for i in reversed(range(len(nbytes))):
        k = next((k for k in range(len(buckets)) if nbytes[i] <= free[k]), len(buckets))
        if k == len(buckets):
            free.append(bucket_bytes if buckets else first_bucket_bytes)
            buckets.append([])
        buckets[k].append(i)
        free[k] -= nbytes[i]
    return buckets
