"""average_gradients: only the first parameter: a return too far to the right"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            return all_reduce_(comm, p.grad, op="mean")
