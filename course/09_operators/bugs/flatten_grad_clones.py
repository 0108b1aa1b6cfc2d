"""flatten: gradients are cloned"""

def flatten(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape).clone()
        at += p.numel()
    return flat, grads
