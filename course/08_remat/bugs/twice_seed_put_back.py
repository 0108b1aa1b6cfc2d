"""twice: the seed is put back, not the state"""

def twice(fn):
    states = []

    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        now = torch.initial_seed()
        torch.set_rng_state(states.pop())
        y = fn(*args)
        torch.manual_seed(now)
        return y

    return first, again
