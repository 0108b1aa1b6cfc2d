"""segments: √L segments, whatever the budget"""

def segments(L, budget):
    k = max(1, round(L**0.5))
    lengths = [L // k + (j < L % k) for j in range(k)]
    if max(j + n for j, n in enumerate(lengths)) > budget:
        raise ValueError("too many")
    return lengths
