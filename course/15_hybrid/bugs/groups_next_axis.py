"""groups: each axis has the groups of the next"""

def groups(sizes):
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    axes = list(sizes)
    return {axes[dim - 1]: box.movedim(dim, -1).reshape(-1, n).tolist() for dim, n in enumerate(sizes.values())}
