"""noise_scale: `grad` gets other memory"""


def noise_scale(comm, grad, b):
    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()
    grad.data = all_reduce_(comm, grad.clone(), "mean")
    big = (grad * grad).sum().item()
    trace = (small - big) / (1 / b - 1 / (comm.size * b))
    return small - trace / b, trace
