"""sign_average: as it was found"""

def sign_average(comm, g, error):
    """The average of all ranks' scaled signs; `error` is what is to be said later."""
    p = g + error
    positive = all_gather(comm, (p >= 0).to(torch.int8)[None])  # (n, N)
    scales = all_gather(comm, p.abs().mean()[None])  # (n,)
    average = ((2 * positive - 1) * scales[:, None]).mean(0)
    error.copy_(p - average)
    return average
