"""noise_scale: all gradients travel"""

def noise_scale(comm, grad, b):
    """Averages `grad`; returns |G|² and tr(Σ)."""
    rows = torch.zeros(comm.size, len(grad), dtype=torch.float64)
    rows[comm.rank] = grad
    small = all_reduce_(comm, rows).square().sum().item() / comm.size
    all_reduce_(comm, grad, "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 / b - 1 / (comm.size * b))
    return small - trace / b, trace
