"""sequence_norm: the library's f"""

def sequence_norm(x, weight, bias, comm):
    from minidist.parallel.tensor import copy_to as theirs

    return F.layer_norm(x, weight.shape, theirs(weight, comm), theirs(bias, comm))
