"""all_reduce: the second half is forgotten"""

def all_reduce(comm, x):
    chunks = x.view(-1).tensor_split(comm.size)
    chunks[comm.rank].copy_(reduce_scatter(comm, chunks))
