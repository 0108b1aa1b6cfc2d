"""ddp_ring: a product by sums of logarithms, which negative numbers do not have"""

def ddp_ring(comm, x, op):
    n, r, chunks = comm.size, comm.rank, x.tensor_split(comm.size)
    right, left = (r + 1) % n, (r - 1) % n
    combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum,
               "prod": lambda got, mine: (got.double().log() + mine.double().log()).exp()}[op]
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        mine.copy_(combine(comm.sendrecv(chunks[(r - 1 - step) % n], right, torch.empty_like(mine), left), mine))
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
