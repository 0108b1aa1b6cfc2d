"""sequence_norm: as it was found: gradients of this rank's tokens alone"""

def sequence_norm(x, weight, bias, comm):
    return F.layer_norm(x, weight.shape, weight, bias)
