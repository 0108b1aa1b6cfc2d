"""shift: it is received into x, which belongs to the caller"""

def shift(comm, x):
    n, r = comm.size, comm.rank
    if n == 1:
        return x.clone()
    mine = x.clone()
    comm.sendrecv(mine, (r + 1) % n, x, (r - 1) % n)
    return x.clone()
