"""save_every: forgets the restart"""

def save_every(cost, restart, hours, devices):
    """Seconds between saves, and the share of the time that is then lost."""
    between = hours * 3600 / devices
    seconds = sqrt(2 * cost * between)
    return seconds, cost / seconds + (seconds / 2) / between
