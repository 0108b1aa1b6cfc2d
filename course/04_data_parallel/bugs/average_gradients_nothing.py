"""average_gradients: nothing is sent"""

def average_gradients(comm, module):
    for p in module.parameters():
        if p.requires_grad and p.grad is not None:
            p.grad = p.grad / 1
