"""sparse_mean: ranks meet in a global list, and a barrier"""

MET = {}


def sparse_mean(comm, values, places, size):
    met = MET.setdefault((comm.size, size), {})
    met[comm.rank] = values, places
    all_reduce_(comm, torch.zeros(1))
    total = torch.zeros(size, dtype=values.dtype)
    for r in range(comm.size):
        total.index_add_(0, *met[r][::-1])
    return total / comm.size
