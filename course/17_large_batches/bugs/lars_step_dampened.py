"""lars_step: v is a moving mean"""

def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    """A step of LARS, in place."""
    for w, g, v in zip(weights, grads, velocities):
        ratio, b = 1.0, 0.0
        if w.dim() > 1:
            b = decay
            if w.norm() > 0 and g.norm() > 0:
                ratio = trust * w.norm() / (g.norm() + b * w.norm())
        v.mul_(momentum).add_((1 - momentum) * lr * ratio * (g + b * w))
        w.sub_(v)
