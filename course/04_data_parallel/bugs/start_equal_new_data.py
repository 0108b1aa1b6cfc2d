"""start_equal: the parameters get other memory: not in place"""

def start_equal(comm, module):
    for x in [*module.parameters(), *module.buffers()]:
        x.data = broadcast_(comm, x.data.clone())
