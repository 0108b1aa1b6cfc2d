"""accumulate: the losses are divided by the number of ranks, not of micro-batches"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / comm.size).backward()
    average_gradients(comm, module)
