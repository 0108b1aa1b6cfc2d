"""sync_statistics: statistics in float32"""

def sync_statistics(comm, x):
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.float().sum(0)) / count
    var = all_reduce_(comm, (x.float() - mean).square().sum(0)) / count
    return mean.double(), var.double(), count
