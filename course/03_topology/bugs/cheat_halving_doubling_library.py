"""halving_doubling: the library's all_reduce_ does the work"""

def halving_doubling(comm, x):
    all_reduce_(comm, x)
