"""tree_broadcast: root + place is not taken modulo n"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, root + place + reach)
        elif reach <= place < 2 * reach:
            comm.recv(x, root + place - reach)
        reach *= 2
