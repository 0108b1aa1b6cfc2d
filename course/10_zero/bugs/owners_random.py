"""owners: random among ranks that are equally full"""

def owners(nbytes, n):
    import random

    loads, owner = [0] * n, [0] * len(nbytes)
    for i in sorted(range(len(nbytes)), key=lambda i: -nbytes[i]):
        owner[i] = random.choice([r for r in range(n) if loads[r] == min(loads)])
        loads[owner[i]] += nbytes[i]
    return owner
