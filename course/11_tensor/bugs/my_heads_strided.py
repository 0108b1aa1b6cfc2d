"""my_heads: every n-th head"""

def my_heads(weight, heads, comm):
    if heads % comm.size:
        raise ValueError(f"{heads} heads, {comm.size} ranks")
    fused = weight.view(3, heads, -1, *weight.shape[1:])
    return fused[:, comm.rank :: comm.size].reshape(-1, *weight.shape[1:]).clone()
