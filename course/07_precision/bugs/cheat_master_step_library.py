"""master_step: the library has it"""

from minidist.train.amp import LossScaler, Masters


def master_step(weights, masters, momenta, grads, scale, lr, mu):
    scaler = LossScaler(scale)
    optimizer = Masters([torch.nn.Parameter(w) for w in weights], torch.optim.SGD, lr=lr, momentum=mu)
    for p, g in zip(optimizer.param_groups[0]["params"], grads):
        p.grad = g
    scaler.step(optimizer)
    return not scaler.skipped
