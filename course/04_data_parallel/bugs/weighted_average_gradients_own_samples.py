"""weighted_average_gradients: divided by this rank's samples, not by all"""

def weighted_average_gradients(comm, module, samples):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples
            all_reduce_(comm, p.grad)
            p.grad /= max(1, samples)
