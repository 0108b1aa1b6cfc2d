"""sharded_step: the library's scaler"""

from minidist.train.amp import LossScaler


def sharded_step(comm, weights, grads, scale, lr):
    scaler = LossScaler(scale, comm=comm)
    params = [torch.nn.Parameter(w) for w in weights] or [torch.nn.Parameter(torch.zeros(1))]
    for p, g in zip(params, grads):
        p.grad = g
    optimizer = torch.optim.SGD(params, lr)
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale()
