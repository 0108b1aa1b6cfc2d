"""average_gradients: a tied matrix is averaged twice"""

def average_gradients(comm, module):
    for _, p in module.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad, op="mean")
