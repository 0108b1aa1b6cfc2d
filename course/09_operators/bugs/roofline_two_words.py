"""roofline: never bound by its launch"""

def roofline(launches, nbytes, flops, device):
    times = {"launch": launches * device["launch"], "memory": nbytes / device["bandwidth"],
             "compute": flops / device["peak"]}
    return times["launch"] + max(times["memory"], times["compute"]), max(["memory", "compute"], key=times.get)
