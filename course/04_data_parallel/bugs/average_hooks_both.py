"""average_hooks: weights are averaged besides gradients"""

def average_hooks(comm, module):
    def hook(p):
        all_reduce_(comm, p.grad, op="mean")
        all_reduce_(comm, p, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
