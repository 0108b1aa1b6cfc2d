"""tree_broadcast: a binary tree: everyone sends twice and is idle then"""

def tree_broadcast(comm, x, root):
    n, place = comm.size, (comm.rank - root) % comm.size
    if place:
        comm.recv(x, (root + (place - 1) // 2) % n)
    for child in (2 * place + 1, 2 * place + 2):
        if child < n:
            comm.send(x, (root + child) % n)
