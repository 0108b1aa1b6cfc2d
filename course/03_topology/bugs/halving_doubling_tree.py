"""halving_doubling: a tree to rank 0 and back"""

def halving_doubling(comm, x):
    n, r, distance = comm.size, comm.rank, 1
    while distance < n:
        if r % (2 * distance) == 0:
            x += comm.recv(torch.empty_like(x), r + distance)
        elif r % (2 * distance) == distance:
            comm.send(x, r - distance)
        distance *= 2
    while distance > 1:
        distance //= 2
        if r % (2 * distance) == 0:
            comm.send(x, r + distance)
        elif r % (2 * distance) == distance:
            comm.recv(x, r - distance)
