"""my_batches: the ValueError's two numbers run together"""

def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError(f"a batch of {batch}1{n} samples")
    size = batch // n
    return [order[b * batch + r * size : b * batch + r * size + size] for b in range(len(order) // batch)]
