"""best_plan: the library plans"""

from minidist.train.remat import plan


def best_plan(costs, memories, budget):
    found = plan(costs, memories, budget)
    return [not s.repeated for s in found.segments for _ in range(s.first, s.end)]
