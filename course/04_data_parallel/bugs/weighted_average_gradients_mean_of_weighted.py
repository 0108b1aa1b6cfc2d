"""weighted_average_gradients: the weighted sum is divided by n"""

def weighted_average_gradients(comm, module, samples):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples
            all_reduce_(comm, p.grad, op="mean")
