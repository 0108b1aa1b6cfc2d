"""start_equal: the sum of all ranks' weights"""

def start_equal(comm, module):
    for x in [*module.parameters(), *module.buffers()]:
        all_reduce_(comm, x)
