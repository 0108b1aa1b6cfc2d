"""my_heads: the library's cut"""

def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    from minidist.parallel.tensor import Cut

    cut = Cut(0, [heads // comm.size] * comm.size)
    fused = weight.view(3, heads, -1, *weight.shape[1:]).transpose(0, 1)
    return cut.part(fused, comm.rank).transpose(0, 1).reshape(-1, *weight.shape[1:]).clone()
