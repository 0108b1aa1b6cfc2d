"""sync_statistics: variance and mean swapped"""

def sync_statistics(comm, x):
    mean = x.sum(0) / max(1, len(x))
    mine = torch.stack([mean, (x - mean).square().sum(0), torch.full_like(mean, len(x))])
    means, squares, counts = all_gather(comm, mine[None]).unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count
    var = (squares + counts * (means - mean).square()).sum(0) / count
    return var, mean, int(count[0])
