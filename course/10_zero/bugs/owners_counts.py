"""owners: parameters are counted, not bytes"""

def owners(nbytes, n):
    """The rank that owns each parameter."""
    loads, owner = [0] * n, [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += 1
    return owner
