"""asynchronous: w gets other memory: not in place"""

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
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w.data = w - rate * g
        log.append((rank, version - has[rank]))
        left[rank] -= 1
        if left[rank]:
            has[rank] = version + 1
            comm.send(w, rank)
    return log
