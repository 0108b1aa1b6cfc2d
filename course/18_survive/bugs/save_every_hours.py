"""save_every: calculates in hours"""

def save_every(cost, restart, hours, devices):
    """Seconds between saves, and the share of the time that is then lost."""
    between = hours / devices
    seconds = sqrt(2 * cost * between)
    return seconds, cost / seconds + (seconds / 2 + restart) / between
