"""next_period: gamma shortens the first period, not the last"""

def next_period(losses, periods, tau_0, gamma):
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[0]) * tau_0)
    return found if found < periods[-1] else math.ceil(gamma * tau_0)
