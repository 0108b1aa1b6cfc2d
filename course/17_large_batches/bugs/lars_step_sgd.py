"""lars_step: no ratio"""

def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    """A step of LARS, in place."""
    for w, g, v in zip(weights, grads, velocities):
        ratio, b = 1.0, 0.0
        if w.dim() > 1:
            b = decay
            if w.norm() > 0 and g.norm() > 0:
                ratio = 1.0
        v.mul_(momentum).add_(lr * ratio * (g + b * w))
        w.sub_(v)
