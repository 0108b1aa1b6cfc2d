"""hierarchical: lengths that g does not divide are refused"""

def hierarchical(comm, x, per_node):
    inner = comm.split([r // per_node for r in range(comm.size)])
    outer = comm.split([r % per_node for r in range(comm.size)])
    flat = x.view(-1)
    mine = all_reduce_(outer, reduce_scatter(inner, flat))
    flat.copy_(all_gather(inner, mine))
