"""hierarchical: the nodes never meet"""

def hierarchical(comm, x, per_node):
    inner = comm.split([r // per_node for r in range(comm.size)])
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(per_node)]
    mine = reduce_scatter(inner, flat, sizes=sizes)
    flat.copy_(all_gather(inner, mine, sizes=sizes))
