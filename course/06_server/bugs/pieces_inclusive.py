"""pieces: end is the last element"""

def pieces(sizes, s):
    found, low, total = [], 0, sum(sizes)
    for server in range(s):
        high, begin, mine = low + total // s + (server < total % s), 0, []
        for param, size in enumerate(sizes):
            first, end = max(low, begin), min(high, begin + size)
            if first < end:
                mine.append((param, first - begin, end - begin - 1))
            begin += size
        found.append(mine)
        low = high
    return found
