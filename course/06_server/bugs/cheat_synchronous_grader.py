"""synchronous: the grader's own"""

def synchronous(comm, servers, w, gradient, steps, rate):
    from minidist.check.server.oracle import in_step

    return in_step(comm, servers, w, gradient, steps, rate)
