"""my_batches: the epoch is cut into n parts, and each of these into batches"""

def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    mine = order.chunk(n)[r] if len(order) else order
    return [mine[b * batch // n : (b + 1) * batch // n] for b in range(len(order) // batch)]
