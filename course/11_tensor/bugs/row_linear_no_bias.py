"""row_linear: the bias is forgotten"""

def row_linear(x, weight, bias, comm):
    return reduce_from(F.linear(x, weight), comm)
