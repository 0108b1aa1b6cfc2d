"""split_backward: autograd, with a forward of its own"""

def split_backward(x, w1, h, w2, dy):
    x, w1, w2 = (t.clone().requires_grad_() for t in (x, w1, w2))
    y = (x @ w1).relu() @ w2
    (dx,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    return dx, lambda: torch.autograd.grad(y, (w1, w2), dy)
