"""find_slow: the latency is counted among the bytes of small messages"""

def find_slow(trace):
    paces = {}
    for m in trace:
        paces.setdefault(m.src, []).append((m.arrived - m.start) / m.nbytes)
    return max(paces, key=lambda rank: max(paces[rank]))
