"""average_hooks: the argument is taken for the gradient, and its gradient asked for"""

def average_hooks(comm, module):
    def hook(grad):
        grad.copy_(all_reduce_(comm, grad.grad.clone(), op="mean"))

    for p in module.parameters():
        if p.requires_grad:
            p.register_hook(hook)
