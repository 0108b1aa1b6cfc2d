"""lars_step: the library's"""

def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    from minidist.train.optim import LARS

    for w, g, v in zip(weights, grads, velocities):
        w.requires_grad_().grad = g
        optimizer = LARS([w], lr, momentum, decay if w.dim() > 1 else 0.0, trust if w.dim() > 1 else 0.0)
        optimizer.state[w]["momentum_buffer"] = v
        optimizer.step()
