"""segments: returns the name of the error"""


def segments(L, budget):
    lengths = []
    while sum(lengths) < L:
        length = min(L - sum(lengths), budget - len(lengths))
        if length < 1:
            return "ValueError: does not fit"
        lengths.append(length)
    return lengths
