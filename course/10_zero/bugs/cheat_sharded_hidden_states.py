"""sharded: all ranks step everything in numpy, where no meter sees the states; the given optimizer is for show"""

import numpy as np


def sharded(comm, params, owner, optimizer):
    mine = [p for p, o in zip(params, owner) if o == comm.rank]
    shown = optimizer([p.detach().clone().requires_grad_() for p in mine]) if mine else None
    rate, count = shown.rate if shown else 0.05, [0]
    means, squares = ([np.zeros(p.shape) for p in params] for _ in range(2))

    def step():
        count[0] += 1
        for p, m, v in zip(params, means, squares):
            g = all_reduce_(comm, p.grad, "mean").numpy()
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            wide = np.sqrt(v / (1 - 0.999 ** count[0])) + 1e-8
            p.data -= torch.from_numpy(rate / (1 - 0.9 ** count[0]) * m / wide)
        if shown:
            for p, q in zip(shown.params, mine):
                p.grad = q.grad
            shown.step()

    return step
