"""sequence_norm: g where f belongs"""

def sequence_norm(x, weight, bias, comm):
    return F.layer_norm(x, weight.shape, reduce_from(weight, comm), reduce_from(bias, comm))
