"""project_backward: drows are added up over the ranks, too"""

def project_backward(comm, dlogits, x, rows):
    return all_reduce_(comm, dlogits @ rows), all_reduce_(comm, dlogits.T @ x)
