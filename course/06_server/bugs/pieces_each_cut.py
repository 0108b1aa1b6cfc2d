"""pieces: each parameter is cut for itself"""

def pieces(sizes, s):
    found = [[] for _ in range(s)]
    for param, size in enumerate(sizes):
        for server in range(s):
            first, end = size * server // s, size * (server + 1) // s
            if first < end:
                found[server].append((param, first, end))
    return found
