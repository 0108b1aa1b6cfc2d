"""average_gradients: only rank 0 has the mean: a reduce"""

from minidist.collectives import reduce_


def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            reduce_(comm, p.grad, op="mean")
