"""roofline: the largest of all three"""

def roofline(launches, nbytes, flops, device):
    times = {"launch": launches * device["launch"], "memory": nbytes / device["bandwidth"],
             "compute": flops / device["peak"]}
    return max(times.values()), max(times, key=times.get)
