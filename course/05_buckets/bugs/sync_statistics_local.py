"""sync_statistics: every rank's own"""

def sync_statistics(comm, x):
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    return x.mean(0), x.var(0, correction=0), count
