"""next_period: the root is missing"""

def next_period(losses, periods, tau_0, gamma):
    """AdaComm's rule."""
    if not periods:
        return tau_0
    found = math.ceil(losses[-1] / losses[0] * tau_0)
    return found if found < periods[-1] else math.ceil(gamma * periods[-1])
