"""average_gradients: rank 0 adds up and sends to all: a star"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, op="mean", algorithm="naive")
