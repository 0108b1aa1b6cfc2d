"""save_every: asks what it is held against"""

def save_every(cost, restart, hours, devices):
    from minidist.check.survive.oracle import interval

    return interval(cost, restart, hours, devices)
