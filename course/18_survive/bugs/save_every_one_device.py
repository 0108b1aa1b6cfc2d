"""save_every: takes the failures of one device"""

def save_every(cost, restart, hours, devices):
    """Seconds between saves, and the share of the time that is then lost."""
    between = hours * 3600
    seconds = sqrt(2 * cost * between)
    return seconds, cost / seconds + (seconds / 2 + restart) / between
