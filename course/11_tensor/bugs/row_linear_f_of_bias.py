"""row_linear: the bias goes through f, and its gradient is n times too large"""

def row_linear(x, weight, bias, comm):
    return reduce_from(F.linear(x, weight), comm) + copy_to(bias, comm)
