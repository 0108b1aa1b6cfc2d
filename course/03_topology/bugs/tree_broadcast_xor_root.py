"""tree_broadcast: places are counted with xor, which is right for powers of two only"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, comm.rank ^ root, 1
    while reach < n:
        if place < reach and place + reach < n:
            comm.send(x, (place + reach) ^ root)
        elif reach <= place < 2 * reach:
            comm.recv(x, (place - reach) ^ root)
        reach *= 2
