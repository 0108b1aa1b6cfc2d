"""find_slow: only what a rank receives is looked at"""

def find_slow(trace):
    paces = {}
    for m in trace:
        paces.setdefault(m.dst, []).append((m.sent - m.start) / m.nbytes)
    return max(paces, key=lambda rank: sum(paces[rank]) / len(paces[rank]))
