"""my_heads: the error tells other numbers, in which the right ones are digits"""

def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads * 10} rows do not split over {comm.size * 10} parts")
    return torch.cat([third.chunk(comm.size)[comm.rank] for third in weight.chunk(3)])
