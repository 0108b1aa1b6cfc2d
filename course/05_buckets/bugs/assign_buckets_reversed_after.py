"""assign_buckets: filled from the front, and turned around afterwards: the odd bucket is the wrong one"""

def assign_buckets(nbytes, bucket_bytes, first_bucket_bytes):
    buckets, free = [], -1
    for i in range(len(nbytes)):
        if nbytes[i] > free:
            free = bucket_bytes if buckets else first_bucket_bytes
            buckets.append([])
        buckets[-1].append(i)
        free -= nbytes[i]
    return [bucket[::-1] for bucket in buckets[::-1]]
