"""sequence_norm: hooks on weight and bias: they see what others say, too, and one more comes with every call"""

def sequence_norm(x, weight, bias, comm):
    for p in (weight, bias):
        p.register_hook(lambda grad: all_reduce_(comm, grad.clone()))
    return F.layer_norm(x, weight.shape, weight, bias)
