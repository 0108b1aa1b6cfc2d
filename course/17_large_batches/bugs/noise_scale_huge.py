"""noise_scale: numbers that are larger than every float"""


def noise_scale(comm, grad, b):
    all_reduce_(comm, grad, "mean")
    return 10**400, 10**400
