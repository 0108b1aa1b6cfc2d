"""find_slow: the rank whose wire rests longest"""

def find_slow(trace):
    idle, free = [0.0] * trace.n, [0.0] * trace.n
    for m in trace:
        idle[m.src] += m.start - free[m.src]
        free[m.src] = m.sent
    return idle.index(max(idle))
