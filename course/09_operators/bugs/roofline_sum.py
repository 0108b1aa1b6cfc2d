"""roofline: bytes and FLOPs one after the other"""

def roofline(launches, nbytes, flops, device):
    times = {"launch": launches * device["launch"], "memory": nbytes / device["bandwidth"],
             "compute": flops / device["peak"]}
    return sum(times.values()), max(times, key=times.get)
