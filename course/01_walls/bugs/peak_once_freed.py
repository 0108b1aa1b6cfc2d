"""peak: a name that was freed stays freed, also when it comes back"""

def peak(events):
    freed = {name for name, nbytes in events if nbytes < 0}
    sums = [sum(nbytes for _, nbytes in events[: i + 1]) for i in range(len(events))]
    left = {name: nbytes for name, nbytes in events if name not in freed}
    return max(sums), sums.index(max(sums)), left
