"""asynchronous: in turn, and gradients that take no time"""

def asynchronous(comm, w, gradient, steps, rate):
    """On rank 0: (rank, staleness) of each update."""
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            gradient.seen.append(w.clone())
            comm.send(gradient.of(w, len(gradient.seen) - 1), 0)
        return None
    g, left, has, log = torch.empty_like(w), [0, *steps], [0] * comm.size, []
    for rank in range(1, comm.size):
        comm.send(w, rank)
    for version in range(sum(steps)):
        rank = next(rank for rank in range(1, comm.size) if left[rank] == max(left))
        comm.recv(g, rank)
        w -= rate * g
        log.append((rank, version - has[rank]))
        left[rank] -= 1
        if left[rank]:
            has[rank] = version + 1
            comm.send(w, rank)
    return log
