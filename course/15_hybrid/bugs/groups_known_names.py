"""groups: axes of known names only"""

def groups(sizes):
    axes = [a for a in sizes if a in ("pp", "dp", "cp", "tp")]
    box = torch.arange(math.prod(sizes[a] for a in axes)).view(*[sizes[a] for a in axes])
    return {a: box.movedim(i, -1).reshape(-1, sizes[a]).tolist() for i, a in enumerate(axes)}
