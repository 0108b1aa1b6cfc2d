"""start_equal: frozen parameters are left out"""

def start_equal(comm, module):
    broadcast_(comm, [*(p for p in module.parameters() if p.requires_grad), *module.buffers()])
