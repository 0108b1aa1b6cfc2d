"""sharded: all ranks step all parameters"""

from minidist.collectives import broadcast_


def sharded(comm, params, owner, optimizer):
    inner = optimizer(list(params))

    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        inner.step()

    return step
