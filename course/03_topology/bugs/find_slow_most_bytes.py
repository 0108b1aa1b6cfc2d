"""find_slow: the rank that sends the most"""

def find_slow(trace):
    return max(range(trace.n), key=trace.bytes_sent)
