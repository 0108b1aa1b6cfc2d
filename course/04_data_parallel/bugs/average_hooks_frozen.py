"""average_hooks: a hook for what is frozen, too"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")

    for p in module.parameters():
        p.register_post_accumulate_grad_hook(hook)
