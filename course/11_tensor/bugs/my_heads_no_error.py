"""my_heads: uneven heads are dealt anyway"""

def my_heads(weight, heads, comm):
    return torch.cat([third.tensor_split(comm.size)[comm.rank] for third in weight.chunk(3)])
