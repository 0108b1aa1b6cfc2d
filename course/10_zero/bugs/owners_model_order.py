"""owners: in the order of the model"""

def owners(nbytes, n):
    """The rank that owns each parameter."""
    loads, owner = [0] * n, [0] * len(nbytes)
    for i in range(len(nbytes)):
        owner[i] = loads.index(min(loads))
        loads[owner[i]] += nbytes[i]
    return owner
