"""to_owners: only the owner takes part in the reduce"""

def to_owners(comm, params, owner):
    def hook(root, p):
        if comm.rank == root:
            reduce_(comm, p.grad, root)
            p.grad.div_(comm.size)
        else:
            p.grad = None
    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(hook, root))
