"""flatten: gradients of float64, whatever the parameters are"""


def flatten(params):
    flat = torch.cat([p.detach().reshape(-1) for p in params])
    grads, at = torch.zeros(len(flat), dtype=torch.float64, device=flat.device), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape).to(p.dtype)
        at += p.numel()
    return flat, grads
