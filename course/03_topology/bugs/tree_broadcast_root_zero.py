"""tree_broadcast: the tree always grows from rank 0"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, comm.rank, 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, place + reach)
        elif reach <= place < 2 * reach:
            comm.recv(x, place - reach)
        reach *= 2
