"""bucketed: summed, not averaged"""

def bucketed(comm, params, buckets):
    for bucket in buckets:
        some = [params[i] for i in bucket]
        flat = torch.cat([p.grad.reshape(-1) for p in some])
        all_reduce_(comm, flat)
        for p, piece in zip(some, flat.split([p.numel() for p in some])):
            p.grad = piece.view_as(p)
