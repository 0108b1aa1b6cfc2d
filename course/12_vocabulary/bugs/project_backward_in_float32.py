"""project_backward: the rows' gradient in float32"""


def project_backward(comm, dlogits, x, rows):
    return all_reduce_(comm, dlogits @ rows), (dlogits.float().T @ x.float()).to(x.dtype)
