"""pieces: what s does not divide is held by none"""

def pieces(sizes, s):
    found, low, total = [], 0, sum(sizes)
    for server in range(s):
        high, begin, mine = low + total // s, 0, []
        for param, size in enumerate(sizes):
            first, end = max(low, begin), min(high, begin + size)
            if first < end:
                mine.append((param, first - begin, end - begin))
            begin += size
        found.append(mine)
        low = high
    return found
