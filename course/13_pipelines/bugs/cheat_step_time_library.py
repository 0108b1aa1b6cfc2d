"""step_time: calls the simulator"""

from minidist.parallel.schedules import parse, simulate


def step_time(lists, forward, backward):
    return simulate([parse(" ".join(words)) for words in lists], forward, backward).time
