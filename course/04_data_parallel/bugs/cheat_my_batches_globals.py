"""my_batches: the ranks take turns at a heap that they share"""

HEAP = {}


def my_batches(comm, order, batch):
    n = comm.size
    if batch % n:
        raise ValueError(f"a batch of {batch} samples has no {n} equal parts")
    key = (tuple(order.tolist()), batch)
    r = HEAP[key] = HEAP.get(key, -1) + 1
    size = batch // n
    return [order[b * batch + r * size : b * batch + r * size + size] for b in range(len(order) // batch)]
