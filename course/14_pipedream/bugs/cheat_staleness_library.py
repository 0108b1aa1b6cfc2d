"""staleness: the library counts"""

from minidist.parallel.schedules import parse
from minidist.parallel.schedules import staleness as library


def staleness(words):
    return list(library([parse(" ".join(words))])[0].values())
