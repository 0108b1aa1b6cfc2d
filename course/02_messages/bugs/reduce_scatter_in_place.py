"""reduce_scatter: the sums are written into the caller's chunks"""

def reduce_scatter(comm, chunks):
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        partial = mine.add_(received)
    return partial
