"""sync_backward: not divided"""

def sync_backward(comm, dy, xhat, scale, count):
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    count = 1
    return scale * (dy - sums[0] / count - xhat * sums[1] / count)
