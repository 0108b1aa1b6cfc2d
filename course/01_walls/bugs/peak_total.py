"""peak: all that was ever allocated, freed or not"""

def peak(events):
    live = {}
    for name, nbytes in events:
        live[name] = live.get(name, 0) + nbytes
    left = {name: nbytes for name, nbytes in live.items() if nbytes}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    most = sum(nbytes for _, nbytes in events if nbytes > 0)
    return most, sums.index(max(sums)), left
