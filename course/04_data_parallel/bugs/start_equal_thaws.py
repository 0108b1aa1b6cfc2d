"""start_equal: all is trained afterwards"""

def start_equal(comm, module):
    module.requires_grad_(True)
    broadcast_(comm, [*module.parameters(), *module.buffers()])
