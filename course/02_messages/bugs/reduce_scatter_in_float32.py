"""reduce_scatter: it adds up in float32, whatever the dtype"""

def reduce_scatter(comm, chunks):
    n, r = comm.size, comm.rank
    partial = chunks[(r - 1) % n].clone()
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        partial = (received.float() + mine.float()).to(mine.dtype)
    return partial
