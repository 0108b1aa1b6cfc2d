"""sync_backward: dy is changed"""

def sync_backward(comm, dy, xhat, scale, count):
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    dy -= sums[0] / count
    return scale * (dy - xhat * sums[1] / count)
