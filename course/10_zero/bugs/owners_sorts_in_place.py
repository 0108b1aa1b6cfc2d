"""owners: sorts what was given"""

def owners(nbytes, n):
    nbytes.sort(reverse=True)
    loads, owner = [0] * n, []
    for b in nbytes:
        owner.append(loads.index(min(loads)))
        loads[owner[-1]] += b
    return owner
