"""next_period: compared with the last loss"""

def next_period(losses, periods, tau_0, gamma):
    """AdaComm's rule."""
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[-2]) * tau_0)
    return found if found < periods[-1] else math.ceil(gamma * periods[-1])
