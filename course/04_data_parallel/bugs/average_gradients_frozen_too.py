"""average_gradients: zeros travel for what is frozen"""

def average_gradients(comm, module):
    for p in module.parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        all_reduce_(comm, grad, op="mean")
        if p.requires_grad:
            p.grad = grad
