"""tree_broadcast: a chain: everyone passes it on once"""

def tree_broadcast(comm, x, root):
    n, place = comm.size, (comm.rank - root) % comm.size
    if place > 0:
        comm.recv(x, (comm.rank - 1) % n)
    if place < n - 1:
        comm.send(x, (comm.rank + 1) % n)
