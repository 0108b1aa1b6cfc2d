"""groups: reshaped without moving the axis"""

def groups(sizes):
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {axis: box.movedim(dim, 0).reshape(-1, n).tolist() for dim, (axis, n) in enumerate(sizes.items())}
