"""ddp_ring: calls the library's"""

def ddp_ring(comm, x, op):
    collectives.all_reduce_(comm, x, op)
