"""sync_statistics: x is centered in place"""

def sync_statistics(comm, x):
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / count
    x -= mean
    return mean, all_reduce_(comm, x.square().sum(0)) / count, count
