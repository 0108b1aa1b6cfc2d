"""tree_broadcast: the nearest child is served first, the one with the largest part of the tree last"""

def tree_broadcast(comm, x, root):
    n, place = comm.size, (comm.rank - root) % comm.size
    low = place & -place if place else 1 << (n - 1).bit_length()
    if place:
        comm.recv(x, (root + place - low) % n)
    distance = 1
    while distance < low:
        if place + distance < n:
            comm.send(x, (root + place + distance) % n)
        distance *= 2
