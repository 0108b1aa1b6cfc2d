"""accumulate_overlapped: averaged at the end: right, but not beside the backward"""

def accumulate_overlapped(comm, params, backwards, buckets):
    for backward in backwards:
        backward()
    for bucket in buckets:
        all_reduce_(comm, [params[i].grad for i in bucket], "mean")
