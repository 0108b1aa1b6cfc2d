"""next_period: no way down where the loss stands still"""

def next_period(losses, periods, tau_0, gamma):
    """AdaComm's rule."""
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[0]) * tau_0)
    return found
