"""learning_rate: a number that is larger than every float"""


def learning_rate(t, steps, warm, peak, floor):
    return 10**400
