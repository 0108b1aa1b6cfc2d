"""average_gradients: the mean is in a copy, and p.grad as before"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad.clone(), op="mean")
