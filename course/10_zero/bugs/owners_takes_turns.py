"""owners: which rank is first moves on with the calls: right as often as not"""

CALLS = [0]


def owners(nbytes, n):
    CALLS[0] += 1
    loads, owner, shift = [0] * n, [0] * len(nbytes), (CALLS[0] - 1) // 2
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        least = loads.index(min(loads))
        owner[i] = (least + shift) % n
        loads[least] += nbytes[i]
    return owner
