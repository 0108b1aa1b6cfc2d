"""start_equal: the mean of all ranks' weights"""

def start_equal(comm, module):
    for x in [*module.parameters(), *module.buffers()]:
        if x.is_floating_point():
            all_reduce_(comm, x, op="mean")
        else:
            broadcast_(comm, x)
