"""look_up_gradient: rows of three float64 numbers only"""


def look_up_gradient(comm, grad, tokens, vocab):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    mine = (tokens >= first) & (tokens < end)
    return torch.zeros(end - first, 3, dtype=torch.float64).index_add_(0, tokens[mine] - first, grad[mine])
