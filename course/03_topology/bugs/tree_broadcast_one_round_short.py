"""tree_broadcast: the number of rounds is rounded down"""

def tree_broadcast(comm, x, root):
    n, place = comm.size, (comm.rank - root) % comm.size
    for k in range(int(math.log2(n))):
        reach = 2**k
        if place < reach and place + reach < n:
            comm.send(x, (root + place + reach) % n)
        elif reach <= place < 2 * reach:
            comm.recv(x, (root + place - reach) % n)
