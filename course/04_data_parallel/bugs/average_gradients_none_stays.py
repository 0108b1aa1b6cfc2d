"""average_gradients: a missing gradient stays None"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            all_reduce_(comm, torch.zeros_like(p) if p.grad is None else p.grad, op="mean")
