"""flatten: the old tensors are kept"""

def flatten(params):
    old = [p.data for p in params]
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    flatten.old = old
    return flat, grads
