"""shift: the result is not returned"""

def shift(comm, x):
    n, r = comm.size, comm.rank
    y = torch.empty_like(x)
    if n > 1:
        comm.sendrecv(x, (r + 1) % n, y, (r - 1) % n)
