"""cut: tries every cut there is"""

from itertools import combinations


def cut(costs, S):
    L = len(costs)
    if L < S:
        raise ValueError("too few layers")
    ways = ([0, *inner, L] for inner in combinations(range(1, L), S - 1))
    best = min(ways, key=lambda cuts: max(sum(costs[a:b]) for a, b in zip(cuts, cuts[1:])))
    return list(zip(best, best[1:]))
