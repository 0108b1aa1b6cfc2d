"""segments: what does not fit is cut off"""

def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        length = min(L - sum(lengths), budget - len(lengths))
        if length < 1:
            return lengths
        lengths.append(length)
    return lengths
