"""twice: takes two arguments only"""


def twice(fn):
    states = []

    def first(x, scale):
        states.append(torch.get_rng_state())
        return fn(x, scale)

    def again(x, scale):
        now = torch.get_rng_state()
        torch.set_rng_state(states.pop())
        out = fn(x, scale)
        torch.set_rng_state(now)
        return out

    return first, again
