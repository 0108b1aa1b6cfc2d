"""project_backward: x is written to"""

def project_backward(comm, dlogits, x, rows):
    x += 0 * x + 1
    x -= 2
    return all_reduce_(comm, dlogits @ rows), dlogits.T @ x
