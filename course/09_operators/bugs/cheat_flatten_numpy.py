"""flatten: a third buffer, which numpy holds"""

def flatten(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    flatten.spare = flat.numpy().copy()
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads
