"""sync_statistics: squares around a value that differs from rank to rank, as if it did not"""

def sync_statistics(comm, x):
    count = int(all_reduce_(comm, torch.tensor(len(x))))
    mean = all_reduce_(comm, x.sum(0)) / count
    shift = x[:1] if len(x) else mean
    squares = all_reduce_(comm, (x - shift).square().sum(0)) / count
    return mean, squares - all_reduce_(comm, (x - shift).sum(0)).div(count).square(), count
