"""find_slow: both ranks of the slowest link"""

def find_slow(trace):
    slowest = max(trace, key=lambda m: (m.sent - m.start) / m.nbytes)
    return slowest.src, slowest.dst
