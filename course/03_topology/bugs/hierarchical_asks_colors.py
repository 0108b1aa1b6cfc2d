"""hierarchical: every rank gives its own color, and all ranks are asked"""

def hierarchical(comm, x, per_node):
    inner = comm.split(comm.rank // per_node)
    outer = comm.split(comm.rank % per_node)
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(per_node)]
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    flat.copy_(all_gather(inner, mine, sizes=sizes))
