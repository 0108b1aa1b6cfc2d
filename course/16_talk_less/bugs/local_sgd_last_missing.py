"""local_sgd: the last period is not averaged"""

def local_sgd(comm, params, step, steps, H):
    """Steps alone; an average after every H of them, and at the end."""
    for t in range(steps):
        step(t)
        if (t + 1) % H == 0:
            all_reduce_(comm, params, "mean")
