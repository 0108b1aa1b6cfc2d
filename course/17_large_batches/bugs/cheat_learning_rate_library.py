"""learning_rate: the library's"""

from minidist.train.optim import cosine, warm_up


def learning_rate(t, steps, warm, peak, floor):
    return peak * warm_up(warm, then=cosine(steps - warm, floor))(t)
