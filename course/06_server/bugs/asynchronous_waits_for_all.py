"""asynchronous: one push of each worker, then one step"""

def asynchronous(comm, w, gradient, steps, rate):
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    log = []
    for step in range(max(steps)):
        there = [k + 1 for k, most in enumerate(steps) if step < most]
        for rank in there:
            comm.send(w, rank)
        for i, rank in enumerate(there):
            g = comm.recv(torch.empty_like(w), rank)
            w -= rate * g
            log.append((rank, i))
    return log
