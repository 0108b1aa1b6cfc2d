"""my_batches: the error says no numbers"""

def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    if batch % n:
        raise ValueError("the batch does not split")
    size = batch // n
    return [order[b * batch + r * size : b * batch + r * size + size] for b in range(len(order) // batch)]
