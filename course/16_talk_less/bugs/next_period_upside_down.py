"""next_period: F₀/F"""

def next_period(losses, periods, tau_0, gamma):
    """AdaComm's rule."""
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[0] / losses[-1]) * tau_0)
    return found if found < periods[-1] else math.ceil(gamma * periods[-1])
