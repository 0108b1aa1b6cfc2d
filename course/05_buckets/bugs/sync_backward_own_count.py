"""sync_backward: divided by this rank's samples"""

def sync_backward(comm, dy, xhat, scale, count):
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    count = max(1, len(dy))
    return scale * (dy - sums[0] / count - xhat * sums[1] / count)
