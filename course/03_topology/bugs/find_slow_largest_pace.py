"""find_slow: the slowest of a rank's messages counts, so that its neighbours look as slow"""

def find_slow(trace):
    paces = [0.0] * trace.n
    for m in trace:
        for rank in (m.dst, m.src):
            paces[rank] = max(paces[rank], (m.sent - m.start) / m.nbytes)
    return paces.index(max(paces))
