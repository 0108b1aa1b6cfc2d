"""local_sgd: steps of a last period are missing"""

def local_sgd(comm, params, step, steps, H):
    for period in range(steps // H):
        for t in range(H):
            step(period * H + t)
        all_reduce_(comm, params, "mean")
