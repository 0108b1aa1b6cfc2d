"""weighted_average_gradients: all gradients are gathered on every rank"""

from minidist.collectives import all_gather


def weighted_average_gradients(comm, module, samples):
    counts = all_gather(comm, torch.tensor([float(samples)], dtype=torch.float64))
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            grads = all_gather(comm, p.grad.unsqueeze(0))
            p.grad = (grads * counts.view(-1, *[1] * p.dim())).sum(0) / counts.sum()
