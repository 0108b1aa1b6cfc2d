"""start_equal: buffers are forgotten"""

def start_equal(comm, module):
    broadcast_(comm, list(module.parameters()))
