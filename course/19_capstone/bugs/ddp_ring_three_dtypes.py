"""ddp_ring: knows three dtypes, and fails with bfloat16"""

def ddp_ring(comm, x, op):
    make = {torch.float32: torch.FloatTensor, torch.float64: torch.DoubleTensor, torch.int64: torch.LongTensor}[x.dtype]
    combine = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "prod": torch.mul}[op]
    n, r, chunks = comm.size, comm.rank, x.tensor_split(comm.size)
    right, left = (r + 1) % n, (r - 1) % n
    for step in range(n - 1):
        mine = chunks[(r - 2 - step) % n]
        combine(mine, comm.sendrecv(chunks[(r - 1 - step) % n], right, make(len(mine)), left), out=mine)
    for step in range(n - 1):
        comm.sendrecv(chunks[(r - step) % n], right, chunks[(r - 1 - step) % n], left)
