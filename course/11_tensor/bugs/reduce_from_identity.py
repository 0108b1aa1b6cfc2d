"""reduce_from: nothing forward"""

def reduce_from(x, comm):
    return x.view_as(x)
