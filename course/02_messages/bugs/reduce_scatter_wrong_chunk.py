"""reduce_scatter: chunk i ends at rank i+1"""

def reduce_scatter(comm, chunks):
    n, r = comm.size, comm.rank
    partial = chunks[r].clone()
    for step in range(n - 1):
        mine = chunks[(r - 1 - step) % n]
        received = comm.sendrecv(partial, (r + 1) % n, torch.empty_like(mine), (r - 1) % n)
        partial = received + mine
    return partial
