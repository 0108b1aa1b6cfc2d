"""cut: the library has it"""

from minidist.parallel.pipeline import partition


def cut(costs, S):
    return partition(costs, S)
