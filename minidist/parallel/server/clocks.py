"""Who may go on: the clock of each worker, and the bound on how far they drift apart.

A worker's clock is the number of its steps that a server has added. Stale synchronous parallel (SSP): a worker begins
another step only while its clock is at most `bound` ahead of the slowest one's.

    bound 1    worker 1  ███ ███ ███ ·····wait····· ███        clock 3, slowest 1: 2 ahead, it waits
               worker 2  ██████████████ ██████████████         clock 2: now worker 1 is 1 ahead, and goes on

bound 0 is lock-step, None asynchronous. A worker that has ended or died has no clock: nobody waits for it.

Between a worker's pull and its push another one adds at most 2·bound + 1 gradients: it was `bound` behind at worst, and
ends up `bound` + 1 ahead, having begun its last step `bound` ahead. So a gradient misses at most (n−1)(2·bound + 1)
others. Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
sections 2 and 3.
"""

from __future__ import annotations


class Clocks:
    """The clocks of `workers`, 0 at first. `steps[worker]`: of those that train.

    Raises ValueError for a bound below 0.
    """

    def __init__(self, workers, bound: int | None = None):
        if bound is not None and bound < 0:
            raise ValueError(f"workers are at least 0 steps apart: the bound is not {bound}")
        self.steps, self.bound = dict.fromkeys(workers, 0), bound

    def tick(self, worker: int) -> int:
        """One more step of `worker` was added. Returns how many."""
        self.steps[worker] += 1
        return self.steps[worker]

    def stop(self, worker: int) -> None:
        """`worker` has ended, or died: it holds nobody up."""
        self.steps.pop(worker, None)

    def ahead(self, worker: int) -> int:
        """By how many steps `worker` is before the slowest."""
        return self.steps[worker] - min(self.steps.values())

    def may_go(self, worker: int) -> bool:
        """Whether it may begin another step."""
        return self.bound is None or self.ahead(worker) <= self.bound


def most_stale(n: int, bound: int) -> int:
    """Updates of others that a gradient of one of n workers misses at most, under a bound."""
    return (n - 1) * (2 * bound + 1)
