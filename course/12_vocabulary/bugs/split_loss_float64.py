"""split_loss: float32 becomes float64"""


def split_loss(comm, part, targets, vocab):
    part = part.float() if part.dtype == torch.float16 else part.double()
    first, end = bounds(uneven(vocab, comm.size))[comm.rank]
    elsewhere = (targets < first) | (targets >= end)
    hit = part.gather(1, (targets - first).clamp(0, end - first - 1)[:, None])[:, 0]
    m = all_reduce_(comm, part.amax(1), op="max")
    s = all_reduce_(comm, (part - m[:, None]).exp().sum(1))
    hit = all_reduce_(comm, hit.masked_fill(elsewhere, 0))
    log_total = m + s.log()
    return log_total - hit, log_total
