"""accumulate: one backward at the end, and all activations in memory"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    losses = [loss_fn(module(x), y) for x, y in micro_batches]
    (sum(losses) / len(losses)).backward()
    average_gradients(comm, module)
