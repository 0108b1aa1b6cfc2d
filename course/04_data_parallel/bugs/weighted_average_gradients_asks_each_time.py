"""weighted_average_gradients: the samples are counted with tensors as large as the gradients"""

def weighted_average_gradients(comm, module, samples):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            everyone = all_reduce_(comm, torch.full_like(p, samples))
            p.grad *= samples / everyone
            all_reduce_(comm, p.grad)
