"""look_up_gradient: the whole gradient is added up over the ranks, and cut"""

def look_up_gradient(comm, grad, tokens, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    mine = (tokens >= first) & (tokens < end)
    whole = grad.new_zeros(vocab, grad.shape[-1])
    whole.index_add_(0, tokens[mine], grad[mine])
    return all_reduce_(comm, whole)[first:end]
