"""one_f_one_b: the library has it"""

from minidist.parallel.schedules import one_f_one_b as theirs


def one_f_one_b(stage, S, M):
    return [str(action) for action in theirs(stage, S, M)]
