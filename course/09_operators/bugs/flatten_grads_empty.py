"""flatten: the gradients are not zeroed"""

def flatten(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.ones_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads
