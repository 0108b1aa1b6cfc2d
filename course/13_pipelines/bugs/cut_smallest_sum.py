"""cut: the sum of the squares is smallest, not the largest part"""

def cut(costs, S):
    L = len(costs)
    if L < S:
        raise ValueError(f"{L} layers do not make {S} stages")
    upto = [sum(costs[:j]) for j in range(L + 1)]
    best = [(upto[j] ** 2, [0, j]) for j in range(L + 1)]
    for s in range(2, S + 1):
        row = [None] * (L + 1)
        for j in range(s, L + 1):
            row[j] = min((best[i][0] + (upto[j] - upto[i]) ** 2, [*best[i][1], j]) for i in range(s - 1, j))
        best = row
    cuts = best[L][1]
    return list(zip(cuts, cuts[1:]))
