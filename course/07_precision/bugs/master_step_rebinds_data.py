"""master_step: weights, masters and momenta get other memory"""


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    if not all(g is None or g.isfinite().all() for g in grads):
        return False
    for w, m, v, g in zip(weights, masters, momenta, grads):
        if g is not None:
            v.data = v * mu + g.float() / scale
            m.data = m - lr * v
            w.data = m.to(w.dtype)
    return True
