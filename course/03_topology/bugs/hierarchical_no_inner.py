"""hierarchical: the ranks of a node never meet"""

def hierarchical(comm, x, per_node):
    outer = comm.split([r % per_node for r in range(comm.size)])
    all_reduce_(outer, x)
