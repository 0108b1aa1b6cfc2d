"""all_gather: the chunks get other memory: not in place"""

def all_gather(comm, chunks):
    n, r = comm.size, comm.rank
    for step in range(n - 1):
        into = torch.empty_like(chunks[(r - step - 1) % n])
        comm.sendrecv(chunks[(r - step) % n], (r + 1) % n, into, (r - 1) % n)
        chunks[(r - step - 1) % n].data = into
