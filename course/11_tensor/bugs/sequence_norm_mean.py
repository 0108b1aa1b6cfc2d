"""sequence_norm: the mean of the gradients"""

def sequence_norm(x, weight, bias, comm):
    n = comm.size
    scale = lambda p: copy_to(p, comm) / n + p.detach() * (1 - 1 / n)
    return F.layer_norm(x, weight.shape, scale(weight), scale(bias))
