"""lamb_step: the library's"""

from minidist.train.optim import LAMB


def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    for w, g, m, v, free in zip(weights, grads, means, squares, plain):
        w.requires_grad_().grad = g
        optimizer = LAMB([w], lr, betas, eps, 0.0 if free else decay, 0.0 if free else 1.0, split=("data",),
                         across={"data": comm})
        optimizer.state[w] = {"step": t - 1, "exp_avg": m, "exp_avg_sq": v}
        optimizer.step()
