"""broadcast: the root sends to itself, too"""

def broadcast(comm, x, root):
    if comm.rank == root:
        for r in range(comm.size):
            comm.send(x, r)
    else:
        comm.recv(x, root)
