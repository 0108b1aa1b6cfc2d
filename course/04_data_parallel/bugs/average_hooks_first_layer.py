"""average_hooks: only the first parameter has a hook"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")

    next(p for p in module.parameters() if p.requires_grad).register_post_accumulate_grad_hook(hook)
