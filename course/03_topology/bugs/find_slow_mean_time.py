"""find_slow: the mean time of a message, whatever its size"""

def find_slow(trace):
    times = [[] for _ in range(trace.n)]
    for m in trace:
        for rank in (m.src, m.dst):
            times[rank].append(m.sent - m.start)
    return max(range(trace.n), key=lambda rank: sum(times[rank]) / len(times[rank]))
