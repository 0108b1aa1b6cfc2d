"""sign_average: one scale for all ranks"""

def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    p = g + error
    positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
    scales = all_gather(comm, p.abs().mean()[None])  # (n,)
    sent = (2 * positive - 1) * scales.mean()
    error.copy_(p - sent[comm.rank])
    return sent.mean(0)
