"""local_sgd: all take rank 0's"""

def local_sgd(comm, params, step, steps, H):
    from minidist.collectives import broadcast_

    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            broadcast_(comm, params)
