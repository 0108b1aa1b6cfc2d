"""sync_backward: the second term is not multiplied with xhat"""

def sync_backward(comm, dy, xhat, scale, count):
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    return scale * (dy - sums[0] / count - sums[1] / count)
