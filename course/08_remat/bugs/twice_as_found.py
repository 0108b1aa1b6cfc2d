"""twice: the generator stays where the second run left it"""

def twice(fn):
    """(first, again): again(*args) draws the random numbers that the last first(*args) drew."""
    states = []

    def first(*args):
        states.append(torch.get_rng_state())
        return fn(*args)

    def again(*args):
        torch.set_rng_state(states.pop())
        return fn(*args)

    return first, again
