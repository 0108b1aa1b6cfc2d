"""bucketed: one flat tensor for all buckets"""

def bucketed(comm, params, buckets):
    some = [params[i] for bucket in buckets for i in bucket]
    flat = torch.cat([p.grad.reshape(-1) for p in some])
    all_reduce_(comm, flat, op="mean")
    for p, piece in zip(some, flat.split([p.numel() for p in some])):
        p.grad = piece.view_as(p)
