"""hierarchical: the library's hierarchical all-reduce does the work"""

def hierarchical(comm, x, per_node):
    all_reduce_(comm, x, algorithm="hierarchical")
