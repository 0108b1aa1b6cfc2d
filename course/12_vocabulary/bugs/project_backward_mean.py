"""project_backward: dx is averaged"""

def project_backward(comm, dlogits, x, rows):
    return all_reduce_(comm, dlogits @ rows, op="mean"), dlogits.T @ x
