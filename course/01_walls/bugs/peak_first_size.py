"""peak: a name that comes back keeps its first size"""

def peak(events):
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    sizes, live = {}, {}
    for name, nbytes in events:
        sizes.setdefault(name, nbytes)
        if nbytes > 0:
            live[name] = sizes[name]
        else:
            live.pop(name)
    return max(sums), sums.index(max(sums)), live
