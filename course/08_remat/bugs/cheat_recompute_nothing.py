"""recompute: there is no checkpoint at all"""

class Recompute:
    @staticmethod
    def apply(fn, alive, x):
        return fn(x)
