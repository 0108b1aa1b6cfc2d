"""shift: it goes to the left"""

def shift(comm, x):
    n, r = comm.size, comm.rank
    if n == 1:
        return x.clone()
    return comm.sendrecv(x, (r - 1) % n, torch.empty_like(x), (r + 1) % n)
