"""master_step: each tensor is skipped for itself"""

def master_step(weights, masters, momenta, grads, scale, lr, mu):
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None and g.isfinite().all():
            v.mul_(mu).add_(g.float() / scale)
            m.sub_(lr * v)
            w.copy_(m)
    return all(g is None or g.isfinite().all() for g in grads)
