"""my_heads: every n-th row"""

def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    return torch.cat([third[comm.rank :: comm.size] for third in weight.chunk(3)])
