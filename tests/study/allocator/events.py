"""What a recording of allocations says."""


def lasting(events):
    """The numbers of tensors that nobody freed."""
    return {e.tensor for e in events if e.nbytes} - {e.tensor for e in events if not e.nbytes}


def peak(events):
    """The most bytes alive at once."""
    alive = {}
    most = 0
    for event in events:
        alive[event.tensor] = event.nbytes
        most = max(most, sum(alive.values()))
    return most
