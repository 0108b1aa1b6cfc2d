"""groups: the ranks that share a coordinate, not those that differ along the axis"""

def groups(sizes):
    box = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return {axis: [box.select(dim, k).flatten().tolist() for k in range(n)]
            for dim, (axis, n) in enumerate(sizes.items())}
