"""cut: too few layers are not refused"""

def cut(costs, S):
    L = len(costs)
    S = min(S, L)
    upto = [sum(costs[:j]) for j in range(L + 1)]
    best = [(upto[j], [0, j]) for j in range(L + 1)]
    for s in range(2, S + 1):
        row = [None] * (L + 1)
        for j in range(s, L + 1):
            row[j] = min((max(best[i][0], upto[j] - upto[i]), [*best[i][1], j]) for i in range(s - 1, j))
        best = row
    cuts = best[L][1]
    return list(zip(cuts, cuts[1:]))
