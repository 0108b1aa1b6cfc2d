"""sharded: own gradients"""

def sharded(comm, params, owner, optimizer):
    """Returns step(): Adam, with its states at the owners."""
    order = sorted(range(len(params)), key=owner.__getitem__)
    lengths = [sum(params[i].numel() for i in order if owner[i] == r) for r in range(comm.size)]
    flat = torch.cat([params[i].data.flatten() for i in order])
    for i, piece in zip(order, flat.split([params[i].numel() for i in order])):
        params[i].data = piece.view_as(params[i])
    mine = [params[i] for i in order if owner[i] == comm.rank]
    inner = optimizer(mine) if mine else None

    def step():
        chunks = list(torch.cat([params[i].grad.flatten() for i in order]).split(lengths))
        mean = chunks[comm.rank]
        for p, grad in zip(mine, mean.split([p.numel() for p in mine])):
            p.grad = grad.view_as(p)
        if inner is not None:
            inner.step()
        all_gather_(comm, list(flat.split(lengths)))

    return step
