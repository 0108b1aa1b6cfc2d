"""find_slow: nothing is returned"""

def find_slow(trace):
    paces = {}
    for m in trace:
        paces.setdefault(m.src, []).append(m.sent - m.start)
    print(max(paces, key=lambda rank: sum(paces[rank])))
