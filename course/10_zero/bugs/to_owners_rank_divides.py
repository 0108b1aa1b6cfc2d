"""to_owners: each rank divides, and the owner again"""

def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""
    def hook(root, p):
        p.grad.div_(comm.size)
        reduce_(comm, p.grad, root)
        if comm.rank == root:
            p.grad.div_(comm.size)
        else:
            p.grad = None

    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(hook, root))
