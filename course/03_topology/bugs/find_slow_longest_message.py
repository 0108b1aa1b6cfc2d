"""find_slow: the sender of the longest message"""

def find_slow(trace):
    return max(trace, key=lambda m: m.sent - m.start).src
