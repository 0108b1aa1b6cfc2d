"""owners: a list of positions for each rank"""

def owners(nbytes, n):
    loads, mine = [0] * n, [[] for _ in range(n)]
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        r = loads.index(min(loads))
        loads[r] += nbytes[i]
        mine[r].append(i)
    return mine
