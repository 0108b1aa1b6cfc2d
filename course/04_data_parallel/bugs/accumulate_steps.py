"""accumulate: a step is taken, with a rate of its own"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    average_gradients(comm, module)
    torch.optim.SGD(module.parameters(), lr=0.1).step()
