"""find_slow: one of the two ranks of the message that is slowest by the byte"""

def find_slow(trace):
    slowest = max(trace, key=lambda m: (m.sent - m.start) / m.nbytes)
    return slowest.dst
