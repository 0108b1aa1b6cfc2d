"""to_owners: everything travels as float64"""

def to_owners(comm, params, owner):
    def hook(root, p):
        total = reduce_(comm, p.grad.double(), root)
        p.grad = total / comm.size if comm.rank == root else None

    for p, root in zip(params, owner):
        p.register_post_accumulate_grad_hook(partial(hook, root))
