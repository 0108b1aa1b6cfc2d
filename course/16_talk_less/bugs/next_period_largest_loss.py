"""next_period: the loss is compared with the largest one"""

def next_period(losses, periods, tau_0, gamma):
    if not periods:
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / max(losses)) * tau_0)
    return found if found < periods[-1] else math.ceil(gamma * periods[-1])
