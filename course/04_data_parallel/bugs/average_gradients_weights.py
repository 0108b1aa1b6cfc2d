"""average_gradients: weights are averaged, not gradients"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad:
            all_reduce_(comm, p, op="mean")
