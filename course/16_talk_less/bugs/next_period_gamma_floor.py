"""next_period: γ rounds down, to 0"""

def next_period(losses, periods, tau_0, gamma):
    """AdaComm's rule."""
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[0]) * tau_0)
    return found if found < periods[-1] else math.floor(gamma * periods[-1])
