"""my_heads: one rank alone gets the weight itself"""

def my_heads(weight, heads, comm):
    if comm.size == 1:
        return weight
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    return torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
