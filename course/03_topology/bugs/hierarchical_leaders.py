"""hierarchical: one rank of each node carries everything across"""

from minidist.collectives import broadcast_, reduce_


def hierarchical(comm, x, per_node):
    inner = comm.split([r // per_node for r in range(comm.size)])
    outer = comm.split([r % per_node for r in range(comm.size)])
    reduce_(inner, x)
    if inner.rank == 0:
        all_reduce_(outer, x)
    broadcast_(inner, x)
