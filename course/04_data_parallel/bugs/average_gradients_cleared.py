"""average_gradients: cleared before the exchange"""

def average_gradients(comm, module):
    module.zero_grad()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p)
            all_reduce_(comm, p.grad, op="mean")
