"""tree_broadcast: right for powers of two only: the last round sends to ranks that do not exist"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        if place < reach:
            comm.send(x, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(x, (root + place - reach) % n)
        reach *= 2
