"""tree_broadcast: the root sends to everyone itself"""

def tree_broadcast(comm, x, root):
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(x, r)
    else:
        comm.recv(x, root)
