"""broadcast: every rank sends to every rank"""

def broadcast(comm, x, root):
    others = [r for r in range(comm.size) if r != comm.rank]
    received = [torch.empty_like(x) for _ in range(comm.size)]
    works = [comm.isend(x.clone(), r) for r in others] if comm.size == 1 else []
    ops = [Send(x, r) for r in others] + [Recv(received[r], r) for r in others]
    comm.batch(ops).wait()
    if comm.rank != root:
        x.copy_(received[root])


from minidist.comm import Recv, Send
