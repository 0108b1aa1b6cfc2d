"""synchronous: a rate of its own"""

def synchronous(comm, servers, w, gradient, steps, rate):
    parts, n = w.tensor_split(servers), comm.size - servers
    if comm.rank >= servers:
        order = [(comm.rank + i) % servers for i in range(servers)]
        for _ in range(steps):
            comm.batch([Recv(parts[i], i) for i in order]).wait()
            pushes = gradient(w).tensor_split(servers)
            comm.batch([Send(pushes[i], i) for i in order]).wait()
        return None
    mine = parts[comm.rank]
    grads = [torch.empty_like(mine) for _ in range(n)]
    for _ in range(steps):
        sends = [Send(mine, servers + (comm.rank + i) % n) for i in range(n)]
        comm.batch(sends + [Recv(g, servers + k) for k, g in enumerate(grads)]).wait()
        mine -= 0.3 * sum(grads) / n
    return mine
