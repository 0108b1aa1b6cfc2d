"""flatten: new parameters in the list"""

def flatten(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for params_at, p in enumerate(params):
        params[params_at] = p = nn.Parameter(flat[at : at + p.numel()].view(p.shape))
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads
