"""sync_backward: the library's backward"""

def sync_backward(comm, dy, xhat, scale, count):
    from minidist.parallel.batchnorm import SyncBatchNorm

    norm = SyncBatchNorm(dy.shape[1], comm, affine=False)
    x = (xhat / scale).requires_grad_()
    norm(x).backward(dy)
    return x.grad
