"""bucketed: it counts positions down, and does not read them"""

def bucketed(comm, params, buckets):
    at = len(params)
    for bucket in buckets:
        some = params[at - len(bucket):at][::-1]
        at -= len(bucket)
        flat = torch.cat([p.grad.reshape(-1) for p in some])
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, flat.split([p.numel() for p in some])):
            p.grad = piece.view_as(p)
