"""sequence_norm: all tokens are gathered, and every rank normalizes all"""

def sequence_norm(x, weight, bias, comm):
    whole = F.layer_norm(gather_sequence(x, comm), weight.shape, copy_to(weight, comm), copy_to(bias, comm))
    return whole.chunk(comm.size, 1)[comm.rank]
