"""mlp: f after fc, not before"""

def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    hidden = F.gelu(copy_to(F.linear(x, fc, fc_bias), comm), approximate="tanh")
    return row_linear(hidden, proj, proj_bias, comm)
