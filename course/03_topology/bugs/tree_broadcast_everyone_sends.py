"""tree_broadcast: also those send that have nothing yet"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        comm.send(x, (root + place + reach) % n)
        comm.recv(x, (root + place - reach) % n)
        reach *= 2
