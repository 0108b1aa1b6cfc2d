"""all_reduce: the numbers that n does not divide are dropped"""

def all_reduce(comm, x):
    n = comm.size
    size = x.numel() // n
    chunks = x.view(-1)[: n * size].split(size) if size else [x.view(-1)[:0]] * n
    chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
    all_gather(comm, chunks)
