"""bounded: the library's clocks"""

def bounded(comm, w, gradient, steps, rate, bound):
    if comm.rank > 0:
        for _ in range(steps):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    from minidist.parallel.server import Clocks

    workers = range(1, comm.size)
    clocks = Clocks(workers, bound)
    clock, has, waiting, log, g = dict.fromkeys(workers, 0), {}, list(workers), [], torch.empty_like(w)
    for version in range(steps * len(workers)):
        for rank in [rank for rank in waiting if clocks.may_go(rank)]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] = clocks.tick(rank)
        if clock[rank] < steps:
            waiting.append(rank)
    return log
