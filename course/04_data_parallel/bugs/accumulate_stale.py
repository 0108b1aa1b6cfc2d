"""accumulate: the gradients of the step before are still there"""

def accumulate(comm, module, loss_fn, micro_batches):
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    average_gradients(comm, module)
