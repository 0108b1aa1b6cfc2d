"""save_every: forgets the 2 under the root"""

def save_every(cost, restart, hours, devices):
    """Seconds between saves, and the share of the time that is then lost."""
    between = hours * 3600 / devices
    seconds = sqrt(cost * between)
    return seconds, cost / seconds + (seconds / 2 + restart) / between
