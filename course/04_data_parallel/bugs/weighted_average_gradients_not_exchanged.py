"""weighted_average_gradients: weighted, and nothing is sent but the samples"""

def weighted_average_gradients(comm, module, samples):
    everyone = all_reduce_(comm, torch.tensor(samples)).item()
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples / everyone
