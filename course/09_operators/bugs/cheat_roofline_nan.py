"""roofline: nan, which no comparison takes for wrong"""


def roofline(launches, nbytes, flops, device):
    times = {
        "launch": launches * device["launch"],
        "memory": nbytes / device["bandwidth"],
        "compute": flops / device["peak"],
    }
    return math.nan, max(times, key=times.get)
