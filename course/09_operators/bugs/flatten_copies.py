"""flatten: the parameters stay where they are"""

def flatten(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads
