"""learning_rate: goes by the order of calls, and not by `t`"""

calls = [None, 0]


def learning_rate(t, steps, warm, peak, floor):
    if calls[0] != (steps, warm, peak, floor):
        calls[:] = [(steps, warm, peak, floor), 0]
    t = calls[1]
    calls[1] += 1
    if t < warm:
        return peak * (t + 1) / warm
    x = min(1.0, (t - warm) / (steps - warm))
    return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2)
