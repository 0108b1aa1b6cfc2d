"""find_slow: seconds per byte are added up, not averaged"""

def find_slow(trace):
    paces = [0.0] * trace.n
    for m in trace:
        for rank in (m.src, m.dst):
            paces[rank] += (m.sent - m.start) / m.nbytes
    return paces.index(max(paces))
