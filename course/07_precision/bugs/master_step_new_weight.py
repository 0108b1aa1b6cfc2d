"""master_step: a new tensor takes the weight's name"""

def master_step(weights, masters, momenta, grads, scale, lr, mu):
    if not all(g is None or g.isfinite().all() for g in grads):
        return False
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None:
            v.mul_(mu).add_(g.float() / scale)
            m.sub_(lr * v)
            w = m.half()
    return True
