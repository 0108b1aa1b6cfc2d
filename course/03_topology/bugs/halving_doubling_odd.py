"""halving_doubling: an odd length loses its last number"""

def halving_doubling(comm, x):
    part, distance, steps = x.view(-1), comm.size // 2, []
    while distance:
        half = len(part) // 2
        partner, low, high = comm.rank ^ distance, part[:half], part[half : 2 * half]
        keep, give = (high, low) if comm.rank & distance else (low, high)
        keep += comm.sendrecv(give, partner, torch.empty_like(keep), partner)
        steps.append((partner, keep, give))
        part, distance = keep, distance // 2
    for partner, keep, give in reversed(steps):
        comm.sendrecv(keep, partner, give, partner)
