"""average_gradients: summed in place, but the mean is in a copy"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            grad = all_reduce_(comm, p.grad)
            grad = grad / comm.size
