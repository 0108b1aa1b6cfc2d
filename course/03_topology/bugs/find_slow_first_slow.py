"""find_slow: the first rank that is slower than the mean"""

def find_slow(trace):
    paces = [[] for _ in range(trace.n)]
    for m in trace:
        for rank in (m.src, m.dst):
            paces[rank].append((m.sent - m.start) / m.nbytes)
    means = [sum(p) / len(p) for p in paces]
    return next(r for r in range(trace.n) if means[r] > sum(means) / trace.n)
