"""halving_doubling: the second half adds what arrives"""

def halving_doubling(comm, x):
    part, distance, steps = x.view(-1), comm.size // 2, []
    while distance:
        partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(steps):
        give += comm.sendrecv(keep, partner, torch.empty_like(give), partner)
