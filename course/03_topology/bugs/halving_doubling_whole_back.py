"""halving_doubling: the second half sends all of x"""

def halving_doubling(comm, x):
    part, distance, steps = x.view(-1), comm.size // 2, []
    while distance:
        partner, (low, high) = comm.rank ^ distance, part.tensor_split(2)
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, part, give is high))
        part, distance = keep, distance // 2
    for partner, part, second in reversed(steps):
        got = comm.sendrecv(part, partner, torch.empty_like(part), partner)
        part.tensor_split(2)[second].copy_(got.tensor_split(2)[second])
