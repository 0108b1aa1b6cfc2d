"""groups: four axes at the most"""

def groups(sizes):
    n = [1] * (4 - len(sizes)) + list(sizes.values())
    rank = lambda a, b, c, d: ((a * n[1] + b) * n[2] + c) * n[3] + d
    found = {}
    for k, name in enumerate(sizes, 4 - len(sizes)):
        others = product(*[range(1 if j == k else n[j]) for j in range(4)])
        found[name] = [[rank(*at[:k], x, *at[k + 1:]) for x in range(n[k])] for at in others]
    return found
