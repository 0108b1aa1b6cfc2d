"""lars_step: weights and velocities get other memory"""


def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    for w, g, v in zip(weights, grads, velocities):
        ratio, b = 1.0, 0.0
        if w.dim() > 1:
            b = decay
            if w.norm() > 0 and g.norm() > 0:
                ratio = trust * w.norm() / (g.norm() + b * w.norm())
        v.data = momentum * v + lr * ratio * (g + b * w)
        w.data = w - v
