"""noise_scale: an estimate below 0 is cut off"""

def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()
    all_reduce_(comm, grad, "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 / b - 1 / (comm.size * b))
    return max(0.0, small - trace / b), trace
