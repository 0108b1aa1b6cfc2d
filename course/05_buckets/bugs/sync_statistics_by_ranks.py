"""sync_statistics: divided by the number of ranks"""

def sync_statistics(comm, x):
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / comm.size
    return mean, all_reduce_(comm, (x - mean).square().sum(0)) / comm.size, count
