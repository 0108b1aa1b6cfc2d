"""average_hooks: the average is forgotten"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad)

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
