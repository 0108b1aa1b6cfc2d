"""roofline: one launch, whatever their number"""

def roofline(launches, nbytes, flops, device):
    times = {"launch": launches * device["launch"], "memory": nbytes / device["bandwidth"],
             "compute": flops / device["peak"]}
    return device["launch"] + max(times["memory"], times["compute"]), max(times, key=times.get)
