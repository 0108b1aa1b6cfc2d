"""segments: an assertion, not a ValueError"""

def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        length = min(L - sum(lengths), budget - len(lengths))
        if length < 1:
            return None
        lengths.append(length)
    return lengths
