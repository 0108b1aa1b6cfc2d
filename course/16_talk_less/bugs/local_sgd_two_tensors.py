"""local_sgd: averages two tensors only"""


def local_sgd(comm, params, step, steps, H):
    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            all_reduce_(comm, params[0], "mean")
            all_reduce_(comm, params[1], "mean")
