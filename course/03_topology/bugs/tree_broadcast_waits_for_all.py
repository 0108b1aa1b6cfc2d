"""tree_broadcast: in each round only one of those who have it sends"""

def tree_broadcast(comm, x, root):
    n, place = comm.size, (comm.rank - root) % comm.size
    reach = 1
    while reach < n:
        for p in range(min(reach, n - reach)):
            token = torch.zeros(1)
            if place == p:
                comm.send(x, (root + p + reach) % n)
                if p + 1 < min(reach, n - reach):
                    comm.send(token, (root + p + 1) % n)
            elif place == p + reach:
                comm.recv(x, (root + p) % n)
            elif place == p + 1 and p + 1 < min(reach, n - reach):
                comm.recv(token, (root + p) % n)
        reach *= 2
