"""tree_broadcast: in every round everyone sends, those without the numbers too"""

def tree_broadcast(comm, x, root):
    n, place, reach = comm.size, (comm.rank - root) % comm.size, 1
    while reach < n:
        got = comm.sendrecv(x, (comm.rank + reach) % n, torch.empty_like(x), (comm.rank - reach) % n)
        if reach <= place < 2 * reach:
            x.copy_(got)
        reach *= 2
