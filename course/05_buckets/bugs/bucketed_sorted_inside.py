"""bucketed: pieces are handed out in another order than they were put in"""

def bucketed(comm, params, buckets):
    for bucket in buckets:
        some = [params[i] for i in bucket]
        flat = torch.cat([p.grad.reshape(-1) for p in some])
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, reversed(flat.split([p.numel() for p in reversed(some)]))):
            p.grad = piece.view_as(p)
