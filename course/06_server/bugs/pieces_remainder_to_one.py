"""pieces: the last server takes all that is left over"""

def pieces(sizes, s):
    found, low, total = [], 0, sum(sizes)
    for server in range(s):
        high, begin, mine = low + total // s if server < s - 1 else total, 0, []
        for param, size in enumerate(sizes):
            first, end = max(low, begin), min(high, begin + size)
            if first < end:
                mine.append((param, first - begin, end - begin))
            begin += size
        found.append(mine)
        low = high
    return found
