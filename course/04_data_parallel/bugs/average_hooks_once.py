"""average_hooks: the hook takes itself off after the first backward"""

def average_hooks(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            def hook(p, handle=[]):
                all_reduce_(comm, p.grad, op="mean")
                handle.pop().remove()

            hook.__defaults__[0].append(p.register_post_accumulate_grad_hook(hook))
