"""row_linear: the library's operator"""

def row_linear(x, weight, bias, comm):
    from minidist.parallel.tensor import reduce_from as theirs

    return theirs(F.linear(x, weight), comm) + bias
