"""tree_broadcast: everyone receives from the root, whoever sends"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(x, root)
        reach *= 2
