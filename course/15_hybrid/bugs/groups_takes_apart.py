"""groups: the argument is used up"""

def groups(sizes):
    found, inside, all_ranks = {}, 1, math.prod(sizes.values())
    while sizes:
        axis, n = sizes.popitem()
        starts = [r for r in range(all_ranks) if r // inside % n == 0]
        found[axis] = [[start + k * inside for k in range(n)] for start in starts]
        inside *= n
    return found
