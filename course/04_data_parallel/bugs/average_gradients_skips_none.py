"""average_gradients: a rank without a gradient does not join the all-reduce"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.grad is not None:
            all_reduce_(comm, p.grad, op="mean")
