"""sync_statistics: the mean of the variances"""

def sync_statistics(comm, x):
    count = all_reduce_(comm, torch.tensor(len(x)))
    mean = all_reduce_(comm, x.sum(0)) / count
    squares = (x - x.sum(0) / max(1, len(x))).square().sum(0)
    return mean, all_reduce_(comm, squares / max(1, len(x)), op="mean"), int(count)
