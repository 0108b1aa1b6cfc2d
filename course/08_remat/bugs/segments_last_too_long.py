"""segments: the last segment takes what is left over"""

def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        length = budget - len(lengths)
        if length < 1:
            raise ValueError("too many")
        lengths.append(length)
    return lengths
