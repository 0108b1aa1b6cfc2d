"""accumulate: the micro-batches are put together again"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    x, y = (torch.cat(parts) for parts in zip(*micro_batches))
    loss_fn(module(x), y).backward()
    average_gradients(comm, module)
