"""row_linear: partial products are not added up"""

def row_linear(x, weight, bias, comm):
    return F.linear(x, weight) + bias
