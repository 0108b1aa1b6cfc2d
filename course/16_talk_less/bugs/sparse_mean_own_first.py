"""sparse_mean: each rank adds in its own order"""

def sparse_mean(comm, values, places, size):
    total = torch.zeros(size, dtype=values.dtype)
    where, what = all_gather(comm, places).view(comm.size, -1), all_gather(comm, values).view(comm.size, -1)
    for s in range(comm.size):
        r = (comm.rank + s) % comm.size
        total.index_add_(0, where[r], what[r] / 3)
    return total * 3 / comm.size
