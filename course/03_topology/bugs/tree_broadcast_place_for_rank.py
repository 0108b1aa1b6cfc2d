"""tree_broadcast: places are used as ranks: the root is not added again"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, place + reach)
        elif reach <= place < 2 * reach:
            comm.recv(x, place - reach)
        reach *= 2
