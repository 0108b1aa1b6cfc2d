"""average_hooks: only rank 0 has the mean"""

from minidist.collectives import reduce_


def average_hooks(comm, module):
    def hook(p):
        reduce_(comm, p.grad, op="mean")

    for p in module.parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(hook)
