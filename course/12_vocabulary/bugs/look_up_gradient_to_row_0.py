"""look_up_gradient: gradients of other ranks' tokens go to row 0"""

def look_up_gradient(comm, grad, tokens, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    mine = (tokens >= first) & (tokens < end)
    return grad.new_zeros(end - first, grad.shape[-1]).index_add_(0, ((tokens - first) * mine).view(-1),
                                                                      grad.view(-1, grad.shape[-1]))
