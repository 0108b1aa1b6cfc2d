"""weighted_average_gradients: each rank's number of samples is taken for everyone's"""

def weighted_average_gradients(comm, module, samples):
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples / (max(1, samples) * comm.size)
            all_reduce_(comm, p.grad)
