"""groups: always pp, dp, tp"""

def groups(sizes):
    sizes = {axis: sizes[axis] for axis in ("pp", "dp", "cp", "tp") if axis in sizes}
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {axis: box.movedim(dim, -1).reshape(-1, n).tolist() for dim, (axis, n) in enumerate(sizes.items())}
