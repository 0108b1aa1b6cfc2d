"""broadcast: the chain goes on to the root, which does not listen"""

def broadcast(comm, x, root):
    n, r = comm.size, comm.rank
    if r != root:
        comm.recv(x, (r - 1) % n)
    if n > 1:
        comm.send(x, (r + 1) % n)
