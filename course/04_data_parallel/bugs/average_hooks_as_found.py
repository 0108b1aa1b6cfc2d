"""average_hooks: as it was found: the weights are averaged"""

def average_hooks(comm, module):
    def hook(grad):
        all_reduce_(comm, grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
