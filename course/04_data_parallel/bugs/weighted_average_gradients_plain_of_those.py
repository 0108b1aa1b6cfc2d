"""weighted_average_gradients: the plain mean of the ranks that have samples"""

def weighted_average_gradients(comm, module, samples):
    there = all_reduce_(comm, torch.tensor(int(samples > 0))).item()
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            all_reduce_(comm, p.grad)
            p.grad /= there
