"""local_sgd: ranks meet in a global dict"""

MET = {}


def local_sgd(comm, params, step, steps, H):
    for t in range(steps):
        step(t)
        if (t + 1) % H == 0 or t + 1 == steps:
            MET[t, comm.rank] = [p.clone() for p in params]
            all_reduce_(comm, torch.zeros(1))
            for i, p in enumerate(params):
                p.copy_(sum(MET[t, r][i] for r in range(comm.size)) / comm.size)
