"""average_hooks: divided by n twice"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")
        p.grad /= comm.size

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
