"""accumulate: the gradients are summed over the ranks"""

def accumulate(comm, module, loss_fn, micro_batches):
    module.zero_grad()
    for x, y in micro_batches:
        (loss_fn(module(x), y) / len(micro_batches)).backward()
    for p in module.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            all_reduce_(comm, p.grad)
