"""accumulate: the loss is averaged, and no gradient"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        loss = loss_fn(module(x), y) / len(micro_batches)
        all_reduce_(comm, loss, op="mean")
        loss.backward()
