"""accumulate: it adds up in float64, whatever the dtype"""

def accumulate(comm, module, loss_fn, micro_batches):
    trained = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros(p.shape, dtype=torch.float64) for p in trained]
    for x, y in micro_batches:
        module.zero_grad()
        loss_fn(module(x), y).backward()
        for p, t in zip(trained, total):
            t += 0 if p.grad is None else p.grad / len(micro_batches)
    for p, t in zip(trained, total):
        p.grad = t
    average_gradients(comm, module)
