"""to_owners: what was sent is kept"""

def to_owners(comm, params, owner):
    """Hooks: each gradient is averaged at its owner, and freed elsewhere."""
    kept = []

    def hook(root, p):
        kept.append(p.grad)
        reduce_(comm, p.grad, root)
        if comm.rank == root:
            p.grad.div_(comm.size)
        else:
            p.grad = None

    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(hook, root))
