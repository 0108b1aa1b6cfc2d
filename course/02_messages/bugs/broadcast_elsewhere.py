"""broadcast: received into a tensor that nobody looks at"""

def broadcast(comm, x, root):
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.send(x, r)
    else:
        x = comm.recv(torch.empty_like(x), root)
