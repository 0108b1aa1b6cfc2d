"""twice: only the last state is kept"""

def twice(fn):
    states = []

    def first(*args):
        states[:] = [torch.get_rng_state()]
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.set_rng_state(states[0])
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
