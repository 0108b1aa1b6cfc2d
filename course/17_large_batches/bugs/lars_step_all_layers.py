"""lars_step: one norm for all layers"""

def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    """A step of LARS, in place."""
    all_w = math.sqrt(sum(float(w.norm()) ** 2 for w in weights))
    all_g = math.sqrt(sum(float(g.norm()) ** 2 for g in grads))
    for w, g, v in zip(weights, grads, velocities):
        ratio, b = 1.0, 0.0
        if w.dim() > 1:
            b = decay
            if all_w > 0 and all_g > 0:
                ratio = trust * all_w / (all_g + b * all_w)
        v.mul_(momentum).add_(lr * ratio * (g + b * w))
        w.sub_(v)
