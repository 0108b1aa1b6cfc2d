"""segments: the last segment is the longest"""

def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        length = min(L - sum(lengths), budget - len(lengths))
        if length < 1:
            raise ValueError("too many")
        lengths.append(length)
    return lengths[::-1]
