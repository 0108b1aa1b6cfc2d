"""mlp: fc_bias is forgotten"""

def mlp(x, fc, fc_bias, proj, proj_bias, comm):
    return row_linear(F.gelu(F.linear(copy_to(x, comm), fc), approximate="tanh"), proj, proj_bias, comm)
