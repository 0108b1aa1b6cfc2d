"""segments: one less than there is room for"""

def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        length = min(L - sum(lengths), budget - len(lengths) - 1)
        if length < 1:
            raise ValueError("too many")
        lengths.append(length)
    return lengths
