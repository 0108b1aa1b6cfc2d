"""shift: every call returns the same buffer"""

kept = {}


def shift(comm, x):
    n, r = comm.size, comm.rank
    y = kept.setdefault((n, r, x.shape, x.dtype), torch.empty_like(x))
    if n == 1:
        return y.copy_(x)
    return comm.sendrecv(x, (r + 1) % n, y, (r - 1) % n)
