"""shift: the library's all_to_all does the work"""

def shift(comm, x):
    from minidist.collectives import all_gather

    return all_gather(comm, x[None])[comm.rank - 1]
