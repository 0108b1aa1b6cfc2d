"""sync_backward: averaged over ranks, and divided by count"""

def sync_backward(comm, dy, xhat, scale, count):
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums, op="mean")
    return scale * (dy - sums[0] / count - xhat * sums[1] / count)
