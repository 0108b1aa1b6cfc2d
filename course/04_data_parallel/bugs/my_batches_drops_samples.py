"""my_batches: n need not divide: the remainder of every batch is dropped"""

def my_batches(comm, order, batch):
    n, r = comm.size, comm.rank
    size = batch // n
    return [order[b * batch + r * size : b * batch + r * size + size] for b in range(len(order) // batch)]
