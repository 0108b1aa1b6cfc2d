"""reduce_scatter: its own chunk is returned"""

def reduce_scatter(comm, chunks):
    return chunks[comm.rank].clone()
