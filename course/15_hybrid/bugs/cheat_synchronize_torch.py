"""synchronize: calls torch.distributed's"""

def synchronize(mesh, backward, micro_batches, grads, kinds):
    for m in range(micro_batches):
        backward(m)
    for g in grads.values():
        torch.distributed.all_reduce(g)
