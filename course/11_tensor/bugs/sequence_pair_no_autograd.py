"""sequence_pair: without autograd"""

def gather_sequence(x, comm):
    return all_gather(comm, x.detach().transpose(0, 1).contiguous()).transpose(0, 1).contiguous()


def reduce_scatter_sequence(x, comm):
    return reduce_scatter(comm, x.detach().transpose(0, 1).contiguous()).transpose(0, 1).contiguous()
