"""next_period: goes by its own memory, and not by `periods`"""

state = [0]


def next_period(losses, periods, tau_0, gamma):
    if len(losses) == 1:
        state[0] = tau_0
        return tau_0
    found = math.ceil(math.sqrt(losses[-1] / losses[0]) * tau_0)
    state[0] = found if found < state[0] else math.ceil(gamma * state[0])
    return state[0]
