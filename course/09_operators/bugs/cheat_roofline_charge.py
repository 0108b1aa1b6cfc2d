"""roofline: the cluster's own"""

from dataclasses import replace

from minidist.comm.charge.charge import roofline as of_the_library
from minidist.comm.charge.flops import Cost


def roofline(launches, nbytes, flops, device):
    card = replace(H100, launch=launches * device["launch"], bandwidth=device["bandwidth"],
                   flops={torch.float32: device["peak"]})
    times = {"launch": card.launch, "memory": nbytes / card.bandwidth, "compute": flops / device["peak"]}
    return of_the_library(card, Cost(flops, nbytes, torch.float32)), max(times, key=times.get)
