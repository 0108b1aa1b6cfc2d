"""average_hooks: no hook: averaged once, when there is no gradient yet"""

def average_hooks(comm, module):
    for p in module.parameters():
        if p.requires_grad and p.grad is not None:
            all_reduce_(comm, p.grad, op="mean")
