"""hierarchical: the two splits are the wrong way round"""

def hierarchical(comm, x, per_node):
    outer = comm.split([r // per_node for r in range(comm.size)])
    inner = comm.split([r % per_node for r in range(comm.size)])
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(inner.size)]
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    flat.copy_(all_gather(inner, mine, sizes=sizes))
