"""sharded: all ranks step all, and then pass on"""

from minidist.collectives import broadcast_


def sharded(comm, params, owner, optimizer):
    inner = optimizer(list(params))

    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        inner.step()
        for p, root in zip(params, owner):
            broadcast_(comm, p.data, root)

    return step
