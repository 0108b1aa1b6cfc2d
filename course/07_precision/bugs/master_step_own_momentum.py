"""master_step: a momentum of its own"""


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    if not all(g is None or g.isfinite().all() for g in grads):
        return False
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None:
            v.mul_(0.9).add_(g.float() / scale)
            m.sub_(lr * v)
            w.copy_(m)
    return True
