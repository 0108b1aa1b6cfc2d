"""average_gradients: rank 0's gradient for everyone"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            broadcast_(comm, p.grad)
