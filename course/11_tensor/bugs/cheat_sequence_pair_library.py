"""sequence_pair: the library's pair"""

def gather_sequence(x, comm):
    from minidist.parallel import tensor

    return tensor.gather_sequence(x, comm, 1)


def reduce_scatter_sequence(x, comm):
    from minidist.parallel import tensor

    return tensor.reduce_scatter_sequence(x, comm, 1)
