"""reduce_from: all-reduced outside of autograd"""

def reduce_from(x, comm):
    return all_reduce_(comm, x.detach().clone())
