"""roofline: a number that is larger than every float"""


def roofline(launches, nbytes, flops, device):
    return 10**400, "launch"
