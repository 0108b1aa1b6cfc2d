"""next_period: the smaller of both rules"""

def next_period(losses, periods, tau_0, gamma):
    if not periods:
        return tau_0
    return min(math.ceil(math.sqrt(losses[-1] / losses[0]) * tau_0), math.ceil(gamma * periods[-1]))
