"""logits_gradient: float32 becomes float64"""


def logits_gradient(comm, part, targets, vocab, log_total):
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    here = ((targets >= first) & (targets < end)).nonzero()[:, 0]
    grad = (part - log_total[:, None]).exp()
    grad[here, targets[here] - first] -= 1
    counts = targets != -100
    return (grad * counts[:, None] / counts.sum()).to(torch.float16 if part.dtype == torch.float16 else torch.float64)
