"""accumulate: averaged before the last micro-batch"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    *first, (x, y) = micro_batches
    for a, b in first:
        (loss_fn(module(a), b) / len(micro_batches)).backward()
    average_gradients(comm, module)
    (loss_fn(module(x), y) / len(micro_batches)).backward()
