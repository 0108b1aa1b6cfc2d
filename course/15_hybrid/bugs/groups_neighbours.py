"""groups: every axis has its neighbours as a group"""

def groups(sizes):
    ranks = torch.arange(math.prod(sizes.values()))
    return {axis: ranks.view(-1, n).tolist() for axis, n in sizes.items()}
