"""noise_scale: this rank alone"""

def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    small = (grad * grad).sum().item()
    all_reduce_(comm, grad, "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 / b - 1 / (comm.size * b))
    return small - trace / b, trace
