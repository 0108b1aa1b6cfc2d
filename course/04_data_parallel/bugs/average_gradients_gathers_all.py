"""average_gradients: everyone gathers all gradients, and takes the mean"""

from minidist.collectives import all_gather


def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = all_gather(comm, p.grad.unsqueeze(0)).mean(0)
