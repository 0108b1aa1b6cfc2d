"""hierarchical: what the node has summed is reduced over all ranks"""

def hierarchical(comm, x, per_node):
    inner = comm.split([r // per_node for r in range(comm.size)])
    all_reduce_(inner, x)
    all_reduce_(comm, x)
