"""sequence_norm: the bias is forgotten"""

def sequence_norm(x, weight, bias, comm):
    return F.layer_norm(x, weight.shape, copy_to(weight, comm), bias)
