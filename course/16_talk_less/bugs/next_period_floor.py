"""next_period: rounded down"""

def next_period(losses, periods, tau_0, gamma):
    """AdaComm's rule."""
    if not periods:
        return tau_0
    found = max(1, int(math.sqrt(losses[-1] / losses[0]) * tau_0))
    return found if found < periods[-1] else math.ceil(gamma * periods[-1])
