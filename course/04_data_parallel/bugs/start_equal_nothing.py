"""start_equal: nothing is done"""

def start_equal(comm, module):
    pass
