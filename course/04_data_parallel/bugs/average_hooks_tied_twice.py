"""average_hooks: a tied matrix has two hooks"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")

    for _, p in module.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
