"""sync_statistics: the mean of no samples is nan"""

def sync_statistics(comm, x):
    mean = x.mean(0)
    mine = torch.stack([mean, (x - mean).square().sum(0), torch.full_like(mean, len(x))])
    means, squares, counts = all_gather(comm, mine[None]).unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    var = (squares + counts * (means - mean).square()).sum(0) / count
    return mean, var, int(count[0])
