"""hierarchical: rank r is put into node r % m, as if ranks were dealt out"""

def hierarchical(comm, x, per_node):
    m = comm.size // per_node
    inner = comm.split([r % m for r in range(comm.size)])
    outer = comm.split([r // m for r in range(comm.size)])
    flat = x.view(-1)
    sizes = [len(piece) for piece in flat.tensor_split(per_node)]
    mine = all_reduce_(outer, reduce_scatter(inner, flat, sizes=sizes))
    flat.copy_(all_gather(inner, mine, sizes=sizes))
