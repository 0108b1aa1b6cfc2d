"""average_hooks: a copy is averaged"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad.clone(), op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
