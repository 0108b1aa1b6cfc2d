"""leavers: who has the fewest steps counts for nothing"""

def leavers(comm, w, gradient, steps, rate, bound):
    if comm.rank > 0:
        for _ in range(steps[comm.rank - 1]):
            comm.recv(w, 0)
            comm.send(gradient(w), 0)
        return None
    workers = range(1, comm.size)
    clock, has, waiting, log, g = dict.fromkeys(workers, 0), {}, list(workers), [], torch.empty_like(w)
    for version in range(sum(steps)):
        long = [c for r, c in clock.items() if steps[r - 1] > min(steps)] or [0]
        for rank in [rank for rank in waiting if clock[rank] - min(long) <= bound]:
            waiting.remove(rank)
            has[rank] = version
            comm.send(w, rank)
        push = comm.irecv(g, ANY)
        push.wait()
        rank = push.source
        w -= rate * g
        log.append((rank, version - has[rank]))
        clock[rank] += 1
        if clock[rank] < steps[rank - 1]:
            waiting.append(rank)
        else:
            del clock[rank]
    return log
