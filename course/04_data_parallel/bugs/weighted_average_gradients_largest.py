"""weighted_average_gradients: weighted with the share of the largest part"""

def weighted_average_gradients(comm, module, samples):
    most = all_reduce_(comm, torch.tensor(samples), op="max").item()
    for p in module.parameters():
        if p.requires_grad:
            if p.grad is None or not samples:
                p.grad = torch.zeros_like(p)
            p.grad *= samples / most
            all_reduce_(comm, p.grad, op="mean")
