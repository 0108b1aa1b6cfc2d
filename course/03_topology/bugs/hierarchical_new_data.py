"""hierarchical: x gets other memory: not in place"""

def hierarchical(comm, x, per_node):
    inner = comm.split([r // per_node for r in range(comm.size)])
    outer = comm.split([r % per_node for r in range(comm.size)])
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(per_node)]
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    x.data = all_gather(inner, mine, sizes=sizes).view(x.shape)
