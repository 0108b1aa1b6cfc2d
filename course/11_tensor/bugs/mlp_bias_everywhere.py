"""mlp: proj_bias is added on every rank"""

def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    hidden = F.gelu(F.linear(copy_to(x, comm), fc, fc_bias), approximate="tanh")
    return reduce_from(F.linear(hidden, proj, proj_bias), comm)
