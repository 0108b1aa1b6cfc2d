"""reduce_scatter: the caller's list is empty afterwards"""

def reduce_scatter(comm, chunks):
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        partial = received + mine
    chunks.clear()
    return partial
