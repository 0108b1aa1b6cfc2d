"""recompute: the library has one"""

from minidist.train.remat import checkpoint as librarys


class Recompute:
    @staticmethod
    def apply(fn, alive, x):
        return librarys(fn, x)
