"""average_gradients: divided by the number of ranks that have a gradient"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            there = all_reduce_(comm, torch.tensor(float(p.grad is not None)))
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
            p.grad /= max(1.0, there.item())
