"""bucketed: one flat tensor, of which each bucket is a part"""

def bucketed(comm, params, buckets):
    whole = torch.cat([params[i].grad.reshape(-1) for bucket in buckets for i in bucket])
    sizes = [sum(params[i].numel() for i in bucket) for bucket in buckets]
    for bucket, flat in zip(buckets, whole.split(sizes)):
        some = [params[i] for i in bucket]
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, flat.split([p.numel() for p in some])):
            p.grad = piece.view_as(p)
