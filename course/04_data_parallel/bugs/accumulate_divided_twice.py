"""accumulate: divided by the number of micro-batches twice"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    average_gradients(comm, module)
    for p in module.parameters():
        if p.grad is not None:
            p.grad /= len(micro_batches)
