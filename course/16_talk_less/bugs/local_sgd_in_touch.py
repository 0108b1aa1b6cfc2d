"""local_sgd: a few bytes in every step"""


def local_sgd(comm, params, step, steps, H):
    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            all_reduce_(comm, params, "mean")
        else:
            all_reduce_(comm, torch.zeros(1, dtype=torch.uint8))
