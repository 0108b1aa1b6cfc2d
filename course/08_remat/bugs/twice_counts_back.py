"""twice: counts back from the last run, and never drops one"""


def twice(fn):
    states, left = [], [None]

    def first(*args):
        states.append(torch.get_rng_state())
        left[0] = None
        return fn(*args)

    def again(*args):
        left[0] = len(states) - 1 if left[0] is None else left[0] - 1
        now = torch.get_rng_state()
        torch.set_rng_state(states[left[0]])
        out = fn(*args)
        torch.set_rng_state(now)
        return out

    return first, again
