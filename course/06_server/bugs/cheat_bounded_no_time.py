"""bounded: in turn, and gradients that take no time"""

def bounded(comm, w, gradient, steps, rate, bound):
    """On rank 0: (rank, staleness) of each update; nobody runs ahead."""
    if comm.rank > 0:
        for _ in range(steps):
            comm.recv(w, 0)
            gradient.seen.append(w.clone())
            comm.send(gradient.of(w, len(gradient.seen) - 1), 0)
        return None
    workers = range(1, comm.size)
    clock, has, waiting, log, g = dict.fromkeys(workers, 0), {}, list(workers), [], torch.empty_like(w)
    for version in range(steps * len(workers)):
        for rank in [rank for rank in waiting if clock[rank] - min(clock.values()) <= bound]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        rank = min(clock, key=clock.get)
        comm.recv(g, rank)
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] += 1
        if clock[rank] < steps:
            waiting.append(rank)
    return log
