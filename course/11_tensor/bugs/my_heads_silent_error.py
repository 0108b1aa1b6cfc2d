"""my_heads: an error without the numbers"""

def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError("heads do not split")
    return torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
