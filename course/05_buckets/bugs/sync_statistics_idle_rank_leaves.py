"""sync_statistics: a rank without samples does not take part"""

def sync_statistics(comm, x):
    if not len(x):
        return torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype), 0
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / count
    return mean, all_reduce_(comm, (x - mean).square().sum(0)) / count, count
