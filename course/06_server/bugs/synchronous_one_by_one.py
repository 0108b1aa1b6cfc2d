"""synchronous: one message after the other"""

def synchronous(comm, servers, w, gradient, steps, rate):
    parts, n = w.tensor_split(servers), comm.size - servers
    if comm.rank >= servers:
        order = range(servers)
        for _ in range(steps):
            comm.batch([Recv(parts[i], i) for i in order]).wait()
            pushes = gradient(w).tensor_split(servers)
            comm.batch([Send(pushes[i], i) for i in order]).wait()
        return None
    mine = parts[comm.rank]
    grads = [torch.empty_like(mine) for _ in range(n)]
    for _ in range(steps):
        sends = [Send(mine, servers + i) for i in range(n)]
        for send in sends:
            comm.send(send.x, send.dst)
        for k, g in enumerate(grads):
            comm.recv(g, servers + k)
        mine -= rate * sum(grads) / n
    return mine
