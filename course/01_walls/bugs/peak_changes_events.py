"""peak: the caller's list is sorted out"""

def peak(events):
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    while any(nbytes < 0 for _, nbytes in events):
        i = next(i for i, (_, nbytes) in enumerate(events) if nbytes < 0)
        events.remove((events[i][0], -events[i][1]))
        del events[i - 1]
    return max(sums), sums.index(max(sums)), dict(events)
