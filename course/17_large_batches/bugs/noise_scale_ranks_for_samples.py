"""noise_scale: a rank counts as a sample"""

def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()
    all_reduce_(comm, grad, "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 - 1 / comm.size)
    return small - trace, trace
