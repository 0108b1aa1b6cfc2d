"""my_batches: the batch is taken for one rank's"""

def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    count = len(order) // (batch * n)
    return [order[(b * n + r) * batch : (b * n + r + 1) * batch] for b in range(count)]
