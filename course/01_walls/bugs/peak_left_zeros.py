"""peak: what was freed is left with 0 bytes"""

def peak(events):
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    return max(sums), sums.index(max(sums)), live
