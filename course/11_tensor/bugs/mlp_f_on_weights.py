"""mlp: f on the weights, too, of which each rank has others"""

def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
    return row_linear(hidden, proj, copy_to(proj_bias, comm), comm)
