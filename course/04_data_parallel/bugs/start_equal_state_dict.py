"""start_equal: a tied matrix travels twice, and buffers that are not saved not at all"""

def start_equal(comm, module):
    broadcast_(comm, list(module.state_dict().values()))
