"""broadcast: rank 0 is the root, whatever is asked"""

def broadcast(comm, x, root):
    if comm.rank == 0:
        for r in range(1, comm.size):
            comm.send(x, r)
    else:
        comm.recv(x, 0)
