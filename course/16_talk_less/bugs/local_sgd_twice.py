"""local_sgd: the last average twice"""

def local_sgd(comm, params, step, steps, H):
    for t in range(steps):
        step(t)
        if (t + 1) % H == 0:
            all_reduce_(comm, params, "mean")
    all_reduce_(comm, params, "mean")
