"""shift: everyone sends first, and nobody is there to receive"""

def shift(comm, x):
    n, r = comm.size, comm.rank
    if n == 1:
        return x.clone()
    comm.send(x, (r + 1) % n)
    return comm.recv(torch.empty_like(x), (r - 1) % n)
