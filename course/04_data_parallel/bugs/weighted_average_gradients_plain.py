"""weighted_average_gradients: the plain mean"""

def weighted_average_gradients(comm, module, samples):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            all_reduce_(comm, p.grad, op="mean")
