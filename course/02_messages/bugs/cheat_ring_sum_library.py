"""ring_sum: the library's all_reduce_ does the work"""

def ring_sum(comm, x):
    from minidist.collectives import all_reduce_

    return all_reduce_(comm, x.clone())
