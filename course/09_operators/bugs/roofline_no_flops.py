"""roofline: bytes alone"""

def roofline(launches, nbytes, flops, device):
    times = {"launch": launches * device["launch"], "memory": nbytes / device["bandwidth"],
             "compute": flops / device["peak"]}
    return times["launch"] + times["memory"], max(times, key=times.get)
