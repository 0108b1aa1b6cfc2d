"""reversible_backward: the library walks back"""

from minidist.train.remat import ReversibleBlock


def reversible_backward(f, g, y1, y2, dy1, dy2):
    x1, x2 = (x.requires_grad_() for x in ReversibleBlock(f, g).inverse(y1, y2))
    torch.autograd.backward([x1 + f(x2), x2 + g(x1 + f(x2))], [dy1, dy2])
    return x1.detach(), x2.detach(), x1.grad, x2.grad
