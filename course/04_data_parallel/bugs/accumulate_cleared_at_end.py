"""accumulate: cleared at the end, for the next step"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    average_gradients(comm, module)
    module.zero_grad()
