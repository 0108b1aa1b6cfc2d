"""start_equal: a tied matrix travels twice"""

def start_equal(comm, module):
    for _, p in module.named_parameters(remove_duplicate=False):
        broadcast_(comm, p)
    for b in module.buffers():
        broadcast_(comm, b)
