"""row_linear: only rank 0 adds the bias, so the copies part"""

def row_linear(x, weight, bias, comm):
    return reduce_from(F.linear(x, weight, bias if comm.rank == 0 else 0 * bias), comm)
