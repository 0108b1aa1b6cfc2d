"""tree_broadcast: x gets other memory: not in place"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    y = x.clone()
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(y, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(y, (root + place - reach) % n)
        reach *= 2
    x.data = y
