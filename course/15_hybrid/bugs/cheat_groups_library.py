"""groups: asks the library's Grid"""

def groups(sizes):
    grid = Grid(order=("pp", "dp", "tp"), **sizes)
    found = {}
    for axis in sizes:
        colors = grid.colors(axis)
        found[axis] = [[r for r, c in enumerate(colors) if c == color] for color in dict.fromkeys(colors)]
    return found
