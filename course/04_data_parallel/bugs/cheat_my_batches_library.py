"""my_batches: the library's sampler does the work"""

from minidist.parallel.data import Sampler


def my_batches(comm, order, batch):
    sampler = Sampler(max(len(order), batch), batch, comm, shuffle=False)
    return [order[part] for part in sampler if len(order) >= batch]
