"""segments: segments as long as the budget"""

def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        lengths.append(min(budget, L - sum(lengths)))
    return lengths
