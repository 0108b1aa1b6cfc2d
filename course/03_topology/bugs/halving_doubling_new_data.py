"""halving_doubling: x gets other memory: not in place"""

def halving_doubling(comm, x):
    y = x.clone()
    part, distance, steps = y.view(-1), comm.size // 2, []
    while distance:
        partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(steps):
        comm.sendrecv(keep, partner, give, partner)
    x.data = y
