"""flatten: laid out as in memory, not row by row"""

def flatten(params):
    flat = torch.cat([(p.detach() if p.is_contiguous() else p.detach().T).reshape(-1) for p in params])
    grads, at = torch.zeros_like(flat), 0
    for p in params:
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()
    return flat, grads
