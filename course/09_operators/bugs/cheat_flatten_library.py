"""flatten: the library's buffer"""

from minidist.train.fuse.flat import Flat


def flatten(params):
    flat = Flat(params)
    flat.grads = torch.zeros_like(flat.data)
    for p, view in zip(params, flat.views(flat.grads)):
        p.grad = view
    return flat.data, flat.grads
