"""step_time: a number that is larger than every float"""


def step_time(lists, forward, backward):
    return 10**400
