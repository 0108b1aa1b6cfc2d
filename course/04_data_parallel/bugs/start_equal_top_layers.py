"""start_equal: layers inside of layers are left out"""

def start_equal(comm, module):
    for child in module.children():
        broadcast_(comm, [*child.parameters(recurse=False), *child.buffers(recurse=False)])
