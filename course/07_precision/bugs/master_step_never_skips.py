"""master_step: steps whatever there is"""

def master_step(weights, masters, momenta, grads, scale, lr, mu):
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None:
            v.mul_(mu).add_(g.float() / scale)
            m.sub_(lr * v)
            w.copy_(m)
    return True
