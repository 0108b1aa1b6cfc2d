"""sharded: an all-reduce of all gradients, then broadcasts"""

from minidist.collectives import broadcast_


def sharded(comm, params, owner, optimizer):
    mine = [p for p, o in zip(params, owner) if o == comm.rank]
    inner = optimizer(mine) if mine else None

    def step():
        for p in params:
            all_reduce_(comm, p.grad, "mean")
        if inner is not None:
            inner.step()
        for p, root in zip(params, owner):
            broadcast_(comm, p.data, root, algorithm="tree")

    return step
