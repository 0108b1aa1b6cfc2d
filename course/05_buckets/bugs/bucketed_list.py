"""bucketed: the collective packs and unpacks: right, but no view"""

def bucketed(comm, params, buckets):
    for bucket in buckets:
        all_reduce_(comm, [params[i].grad for i in bucket], op="mean")
