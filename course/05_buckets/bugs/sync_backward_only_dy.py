"""sync_backward: only dy, scaled"""

def sync_backward(comm, dy, xhat, scale, count):
    sums = torch.stack([dy.sum(0), (dy * xhat).sum(0)])
    all_reduce_(comm, sums)
    return scale * (dy)
