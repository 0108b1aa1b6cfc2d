"""next_period: a whole number is rounded up to the next one"""

def next_period(losses, periods, tau_0, gamma):
    if not periods:
        return tau_0
    found = int(math.sqrt(losses[-1] / losses[0]) * tau_0) + 1
    return found if found < periods[-1] else math.ceil(gamma * periods[-1])
