"""weighted_average_gradients: a missing gradient is multiplied"""

def weighted_average_gradients(comm, module, samples):
    everyone = all_reduce_(comm, torch.tensor(samples)).item()
    for p in module.parameters():
        if p.requires_grad:
            p.grad *= samples / everyone
            all_reduce_(comm, p.grad)
