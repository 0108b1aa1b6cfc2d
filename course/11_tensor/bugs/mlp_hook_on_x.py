"""mlp: a hook on x in f's place: x has other readers, as in x + mlp(x)"""

def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    x.register_hook(lambda g: all_reduce_(comm, g.clone()))
    hidden = F.gelu(F.linear(x, fc, fc_bias), approximate="tanh")
    return row_linear(hidden, proj, proj_bias, comm)
