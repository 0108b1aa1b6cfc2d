"""accumulate: cleared before every micro-batch"""

def accumulate(comm, module, loss_fn, micro_batches):
    for x, y in micro_batches:
        module.zero_grad()
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    average_gradients(comm, module)
