"""hierarchical: all of x is reduced in the node, and all of it again between nodes"""

def hierarchical(comm, x, per_node):
    inner = comm.split([r // per_node for r in range(comm.size)])
    outer = comm.split([r % per_node for r in range(comm.size)])
    all_reduce_(inner, x)
    all_reduce_(outer, x)
