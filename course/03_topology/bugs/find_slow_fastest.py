"""find_slow: the fastest rank"""

def find_slow(trace):
    paces = {}
    for m in trace:
        for rank in (m.src, m.dst):
            paces.setdefault(rank, []).append((m.sent - m.start) / m.nbytes)
    return min(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))
