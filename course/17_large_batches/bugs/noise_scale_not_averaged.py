"""noise_scale: the average is another tensor"""

def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()
    grad = all_reduce_(comm, grad.clone(), "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 / b - 1 / (comm.size * b))
    return small - trace / b, trace
