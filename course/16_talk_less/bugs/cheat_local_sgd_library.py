"""local_sgd: the library's average"""

def local_sgd(comm, params, step, steps, H):
    from minidist.train.local_sgd.averages import average_

    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            average_(comm, params)
