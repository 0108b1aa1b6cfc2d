"""roofline: the smaller counts"""

def roofline(launches, nbytes, flops, device):
    times = {"launch": launches * device["launch"], "memory": nbytes / device["bandwidth"],
             "compute": flops / device["peak"]}
    return times["launch"] + min(times["memory"], times["compute"]), max(times, key=times.get)
