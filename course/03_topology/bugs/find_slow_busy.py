"""find_slow: the rank whose wire is busy longest"""

def find_slow(trace):
    busy = [0.0] * trace.n
    for m in trace:
        busy[m.src] += m.sent - m.start
    return busy.index(max(busy))
