"""accumulate: averaged after every micro-batch: right, but k times the bytes"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
        average_gradients(comm, module)
