"""groups: groups run from the end of the axis"""

def groups(sizes):
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {axis: box.movedim(dim, -1).flip(-1).reshape(-1, n).tolist() for dim, (axis, n) in enumerate(sizes.items())}
