"""master_step: looks for inf only"""

def master_step(weights, masters, momenta, grads, scale, lr, mu):
    if not all(g is None or not g.isinf().any() for g in grads):
        return False
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None:
            v.mul_(mu).add_(g.float() / scale)
            m.sub_(lr * v)
            w.copy_(m)
    return True
