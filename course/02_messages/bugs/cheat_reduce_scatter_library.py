"""reduce_scatter: the library's ring does the work"""

from minidist.collectives import ring


def reduce_scatter(comm, chunks):
    out = torch.empty_like(chunks[comm.rank])
    ring.reduce_scatter(comm, list(chunks), out, torch.add)
    return out
