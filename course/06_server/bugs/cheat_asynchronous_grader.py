"""asynchronous: the grader's own"""

def asynchronous(comm, w, gradient, steps, rate):
    from minidist.check.server.oracle import as_they_come

    return as_they_come(comm, w, gradient, steps, rate)
