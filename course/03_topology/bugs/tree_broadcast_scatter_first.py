"""tree_broadcast: x is dealt out in pieces and gathered by everyone"""

def tree_broadcast(comm, x, root):
    n, r = comm.size, comm.rank
    pieces = x.view(-1).tensor_split(n)
    for other in range(n):
        if other != root and r == root:
            comm.send(pieces[other], other)
        elif other == r != root:
            comm.recv(pieces[other], root)
    for step in range(n - 1):
        comm.sendrecv(pieces[(r - step) % n], (r + 1) % n, pieces[(r - step - 1) % n], (r - 1) % n)
