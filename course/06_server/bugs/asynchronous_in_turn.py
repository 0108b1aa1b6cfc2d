"""asynchronous: the server hears the workers in the order of their ranks"""

def asynchronous(comm, w, gradient, steps, rate):
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    g, left, has, log = torch.empty_like(w), [0, *steps], [0] * comm.size, []
    for rank in range(1, comm.size):
        comm.send(w, rank)
    for version in range(sum(steps)):
        rank = next(r for i in range(1, comm.size) if left[r := (version + i - 1) % (comm.size - 1) + 1])
        comm.recv(g, rank)
        w -= rate * g
        log.append((rank, version - has[rank]))
        left[rank] -= 1
        if left[rank]:
            has[rank] = version + 1
            comm.send(w, rank)
    return log
