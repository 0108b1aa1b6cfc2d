"""noise_scale: the library's"""

from minidist.train.optim import noise_terms


def noise_scale(comm, grad, b):
    small = all_reduce_(comm, (grad * grad).sum(), "mean").item()
    all_reduce_(comm, grad, "mean")
    return tuple(noise_terms(small, (grad * grad).sum().item(), b, comm.size * b))
