"""tree_broadcast: what arrives goes into a new tensor, not into x"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            x = comm.recv(torch.empty_like(x), (root + place - reach) % n)
        reach *= 2
