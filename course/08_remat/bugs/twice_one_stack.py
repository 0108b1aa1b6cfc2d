"""twice: one stack for all functions"""

states = []


def twice(fn):
    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop())
        try:
            return fn(*args)
        finally:
            torch.set_rng_state(now)

    return first, again
