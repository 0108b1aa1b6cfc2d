"""groups: the first axis innermost"""

def groups(sizes):
    sizes = dict(reversed(sizes.items()))
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {axis: box.movedim(dim, -1).reshape(-1, n).tolist() for dim, (axis, n) in enumerate(sizes.items())}
