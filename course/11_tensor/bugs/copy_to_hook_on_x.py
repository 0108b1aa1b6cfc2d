"""copy_to: a hook on x, which has other readers"""

def copy_to(x, comm):
    x.register_hook(lambda grad: all_reduce_(comm, grad.clone()))
    return x
