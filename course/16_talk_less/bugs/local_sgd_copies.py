"""local_sgd: copies are averaged"""

def local_sgd(comm, params, step, steps, H):
    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            params = [all_reduce_(comm, p.clone(), "mean") for p in params]
