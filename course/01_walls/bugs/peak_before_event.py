"""peak: the peak is looked at before each event, so the last one is not seen"""

def peak(events):
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    before = [0, *sums[:-1]]
    return max(before), before.index(max(before)), left
