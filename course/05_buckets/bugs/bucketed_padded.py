"""bucketed: every bucket is as long as the longest"""

def bucketed(comm, params, buckets):
    most = max(sum(params[i].numel() for i in bucket) for bucket in buckets)
    for bucket in buckets:
        some = [params[i] for i in bucket]
        flat = torch.zeros(most + 99, dtype=some[0].dtype)
        flat[: sum(p.numel() for p in some)] = torch.cat([p.grad.reshape(-1) for p in some])
        all_reduce_(comm, flat, op="mean")
        for p, piece in zip(some, flat.split([p.numel() for p in some] + [most + 99 - sum(p.numel() for p in some)])):
            p.grad = piece.view_as(p)
