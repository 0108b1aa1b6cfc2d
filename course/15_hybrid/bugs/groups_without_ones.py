"""groups: axes of one rank are left out"""

def groups(sizes):
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {axis: box.movedim(dim, -1).reshape(-1, n).tolist()
            for dim, (axis, n) in enumerate(sizes.items()) if n > 1}
