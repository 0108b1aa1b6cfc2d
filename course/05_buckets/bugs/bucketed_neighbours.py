"""bucketed: it takes all from a bucket's smallest position to its largest"""

def bucketed(comm, params, buckets):
    for bucket in buckets:
        some = params[min(bucket):max(bucket) + 1][::-1]
        flat = torch.cat([p.grad.reshape(-1) for p in some])
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, flat.split([p.numel() for p in some])):
            p.grad = piece.view_as(p)
