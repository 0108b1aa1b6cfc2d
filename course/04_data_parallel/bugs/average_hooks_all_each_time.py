"""average_hooks: every hook averages all gradients"""

def average_hooks(comm, module):
    def hook(_):
        for p in module.parameters():
            if p.grad is not None:
                all_reduce_(comm, p.grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
