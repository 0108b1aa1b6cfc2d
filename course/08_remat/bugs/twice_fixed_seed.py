"""twice: a seed of its own"""

def twice(fn):
    states = []

    def first(*args):
        torch.manual_seed(0)
        return fn(*args)

    def again(*args):
        now = torch.get_rng_state()
        torch.manual_seed(0)
        y = fn(*args)
        torch.set_rng_state(now)
        return y

    return first, again
