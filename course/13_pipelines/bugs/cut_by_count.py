"""cut: equally many layers a stage"""

def cut(costs, S):
    L = len(costs)
    if L < S:
        raise ValueError("too few layers")
    return [(s * L // S, (s + 1) * L // S) for s in range(S)]
