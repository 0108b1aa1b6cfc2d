"""sync_statistics: E[x²] − E[x]², never below zero"""

def sync_statistics(comm, x):
    total, squares = all_reduce_(comm, torch.stack([x.sum(0), (x * x).sum(0)]))
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    return total / count, (squares / count - (total / count) ** 2).clamp(min=0), count
