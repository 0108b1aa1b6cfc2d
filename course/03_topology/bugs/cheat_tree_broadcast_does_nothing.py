"""tree_broadcast: it does nothing, and the root has its numbers"""

def tree_broadcast(comm, x, root):
    return x
