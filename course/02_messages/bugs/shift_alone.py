"""shift: a rank that is alone sends to itself"""

def shift(comm, x):
    n, r = comm.size, comm.rank
    return comm.sendrecv(x, (r + 1) % n, torch.empty_like(x), (r - 1) % n)
