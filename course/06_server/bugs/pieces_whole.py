"""pieces: parameters are not cut"""

def pieces(sizes, s):
    found, held = [[] for _ in range(s)], 0
    for param, size in enumerate(sizes):
        found[min(s - 1, held * s // sum(sizes))].append((param, 0, size))
        held += size
    return found
