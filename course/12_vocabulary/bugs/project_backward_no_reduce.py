"""project_backward: dx is this rank's part"""

def project_backward(comm, dlogits, x, rows):
    return dlogits @ rows, dlogits.T @ x
