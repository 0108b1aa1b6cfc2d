"""flatten: a third buffer, out of the meter's sight"""

from torch.utils._python_dispatch import _disable_current_modes


def flatten(params):
    with _disable_current_modes():
        flat = torch.cat([p.detach().reshape(-1) for p in params])
        flatten.spare = flat.clone()
        grads, at = torch.zeros_like(flat), 0
        for p in params:
            p.data = flat[at : at + p.numel()].view(p.shape)
            p.grad = grads[at : at + p.numel()].view(p.shape)
            at += p.numel()
    return flat, grads
